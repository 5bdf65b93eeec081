"""Run a compiled program under JAX's profiler, and read the operations that it recorded."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import jax

from rnnscan.inside.profiling.operations import Operation
from rnnscan.inside.profiling.timeline import Event


def run_profiled(run: Callable[[], Any], runs: int, operations: Mapping[str, Operation]) -> tuple[list[Event], float]:
    """Run a program several times under the profiler.

    Args:
        run: runs the program and waits for its results.
        runs: how often.
        operations: the operations of the program.

    Returns:
        The operations that ran, and the time of a run in seconds, the mean.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would slow the run.
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            seconds = seconds_of(run, runs)
        (path,) = Path(folder).rglob("*.xplane.pb")
        return [*_events(jax.profiler.ProfileData.from_file(str(path)), operations)], seconds


def seconds_of(run: Callable[[], Any], runs: int) -> float:
    """The time of a run in seconds, the mean of several."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return mean(times)


def _events(data: Any, operations: Mapping[str, Operation]) -> Iterator[Event]:
    # On a CPU operations run on threads of the host.
    begin = "/host:CPU" if jax.default_backend() == "cpu" else "/device:"
    planes = [plane for plane in data.planes if plane.name.startswith(begin)]
    for number, line in enumerate(line for plane in planes for line in plane.lines):
        for event in line.events:
            name = _operation(event, operations)
            if name is not None:
                yield Event(event.start_ns, event.start_ns + event.duration_ns, name, number)


def _operation(event: Any, operations: Mapping[str, Operation]) -> str | None:
    """The operation of an event, if it is one: a CPU's has its name, a kernel of a GPU its own or that of its graph."""
    name: str = event.name
    if name in operations:
        return name
    of_graph = dict(event.stats).get("hlo_op")
    return of_graph if of_graph in operations else None
