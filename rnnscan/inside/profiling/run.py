"""Run a compiled program under JAX's profiler, and read the operations that it recorded."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from rnnscan.inside.profiling.operations import Operation
from rnnscan.inside.profiling.timeline import Event


def run_profiled(
    run: Callable[[], Any], runs: int, operations: Mapping[str, Operation]
) -> tuple[list[Event], list[float]]:
    """Run a program several times under the profiler.

    Args:
        run: runs the program and waits for its results.
        runs: how often.
        operations: the operations of the program.

    Returns:
        The operations that ran, and the seconds of each run.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would slow the run.
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            seconds = seconds_of_each(run, runs)
        (path,) = Path(folder).rglob("*.xplane.pb")
        return [*_events(jax.profiler.ProfileData.from_file(str(path)), operations)], seconds


def seconds_of_each(run: Callable[[], Any], runs: int) -> list[float]:
    """The seconds of each of several runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _events(data: Any, operations: Mapping[str, Operation]) -> Iterator[Event]:
    # On a CPU operations run on threads of the host.
    on_host = jax.default_backend() == "cpu"
    planes = [plane for plane in data.planes if plane.name.startswith("/host:CPU" if on_host else "/device:")]
    for number, line in enumerate(line for plane in planes for line in plane.lines):
        for event in line.events:
            name = event.name
            if name not in operations and not on_host:
                # A kernel of a GPU's graph has a name of its own. On a CPU the statistics of some events end the
                # process (jaxlib 0.12.0), and every operation has its name.
                name = dict(event.stats).get("hlo_op")
            if name in operations:
                yield Event(event.start_ns, event.start_ns + event.duration_ns, name, number)
