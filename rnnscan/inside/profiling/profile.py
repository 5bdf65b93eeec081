"""profile(): where the time of a compiled function goes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import mean, median
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan import _checks as checks
from rnnscan._util.messages import describe, describe_value, in_words, is_array_like
from rnnscan._util.sources import scope_name
from rnnscan.inside.profiling.operations import Operation, Operations
from rnnscan.inside.profiling.report import LoopTime, Profile, ScanEstimate, ScopeTime
from rnnscan.inside.profiling.run import run_profiled, seconds_of_each
from rnnscan.inside.profiling.timeline import Times, shared
from rnnscan.insight.explain import explain
from rnnscan.scan_observer import observing_scans
from rnnscan.scan_runner import without_runners
from rnnscan.scanning import scan


# Nanoseconds that the profiler takes for an operation: 100 to 300 on a quiet machine, 500 to 1,600 beside other work
# (jax 0.10.2 and 0.12.0). A run that takes longer than that was held up by something else.
_LONGEST_RECORD = 3_000


def profile(function: Callable[..., Any], *arguments: Any, runs: int = 3, **options: Any) -> Profile:
    """Run a function under JAX's profiler, and show where its time goes: by cell, name, pass and loop.

    The function is compiled, by `jax.jit` if it is not jitted. Each operation of the compiled program belongs to a
    scope: the cell of its scan, the parts of cells and nets, and the first name that needs it, `net_0/LSTM/gates`.
    Flax's modules and your own `jax.named_scope`s are scopes too. Profilers show the same scopes, because they are part
    of the program. A loop that XLA compiles to one kernel has no names inside, and the lax engine gives none.

    Operations that run at once share their time, so that the times add up to that of the run. On a GPU or TPU they are
    those of the device; the rest of a run is the time in which it waits. On a CPU the profiler slows the run. What it
    adds is taken off the times, the same for each operation.

    Args:
        function: a function of arrays, jitted or not, such as a training step.
        arguments: its arguments.
        runs: how many runs the profiler sees.
        options: its arguments by name. An argument that is no array is bound with `functools.partial`.

    Returns:
        A `Profile`. It prints as tables: the time of each scope and pass, in loops and at once; that of each loop; and
        beside them what the engine estimated for each scan.

    Raises:
        TypeError: if the function cannot be called, or an argument is no array.
        ValueError: if `runs` is not positive.
        RuntimeError: if the profiler recorded no operation of the program.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.LSTM(64), jnp.ones((100, 8, 32))
        >>> params = cell.init(jax.random.key(0), input_size=32)
        >>> loss = lambda params: rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1].sum()
        >>> profile = rs.profile(jax.grad(loss), params)
        >>> sorted({time.scope for time in profile.scopes if time.scope})
        ['LSTM', 'LSTM/gates']
    """
    if not callable(function):
        raise TypeError(f"profile: the first argument must be a function; got {describe(function)}.")
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise ValueError(f"profile: `runs` must be a positive number of runs; got {runs!r}.")
    checks.check_has_values("profile", arguments, options)
    is_jitted = hasattr(function, "lower")
    if not is_jitted:  # A jitted function may have static arguments.
        _check_arrays(arguments, options)
    observer = _Estimates()
    with observing_scans(observer):
        jitted: Any = function if is_jitted else jax.jit(function)
        lowered = jitted.lower(*arguments, **options)
    call = _without_static(lowered, arguments, options)
    with _names_in_cache_key():
        compiled = lowered.compile()
    operations = Operations(compiled.as_text())
    run = _runner(compiled, lowered, call)
    run()
    seconds = seconds_of_each(run, runs)
    events, profiled_seconds = run_profiled(run, runs, operations)
    if not events:
        raise RuntimeError(
            f"profile: the profiler must record the operations of {in_words(function)}; it recorded none. Does "
            "jax.profiler.trace record any on this device?"
        )
    counts = Counter(event.name for event in events)
    times = shared(events, operations)
    if jax.default_backend() == "cpu":  # The times of other devices are the device's own.
        times = _without_overhead(times, counts, _overhead(times, counts, seconds, profiled_seconds))
    return Profile(
        function=in_words(function),
        device=jax.devices()[0].device_kind,
        scopes=tuple(_scope_times(times, operations, counts, runs)),
        loops=tuple(_loop_times(times, operations, counts, runs)),
        estimates=tuple(observer.estimates),
        seconds=mean(seconds),
        profiled_seconds=mean(profiled_seconds),
        runs=runs,
    )


def _check_arrays(arguments: Any, options: Mapping[str, Any]) -> None:
    """Reject arguments that are no arrays, which a compiled function does not take."""
    places = {f"argument {number}": argument for number, argument in enumerate(arguments)}
    for place, tree in {**places, **{f"`{name}`": value for name, value in options.items()}}.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not is_array_like(leaf):
                raise TypeError(
                    f"profile: the function's arguments must be arrays or numbers; got {describe_value(leaf)} in "
                    f"{place}{jax.tree_util.keystr(path)}. Bind it with functools.partial."
                )


@contextmanager
def _names_in_cache_key() -> Iterator[None]:
    """A context in which JAX's cache on disk gives no program of equal operations with other names."""
    option = "jax_compilation_cache_include_metadata_in_key"
    before = getattr(jax.config, option)
    jax.config.update(option, True)
    try:
        yield
    finally:
        jax.config.update(option, before)


def _without_static(
    lowered: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments by position and by name that a compiled program takes: all but static ones."""
    positional, named = lowered.args_info
    if len(positional) < len(arguments):
        raise TypeError(
            f"profile: arguments by position must not be static; got {len(arguments) - len(positional)} that are, by "
            "`static_argnums`. Pass them by name, or bind them with functools.partial."
        )
    return arguments, {name: value for name, value in options.items() if name in named}


def _runner(compiled: Any, lowered: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Callable[[], None]:
    """Runs the program and waits for it. Arguments that it may overwrite are copied before the first run."""
    donates = any(argument.donated for argument in jax.tree.leaves(lowered.args_info))

    def run() -> None:
        positional, named = jax.tree.map(jnp.copy, call) if donates else call
        jax.block_until_ready(compiled(*positional, **named))

    return run


class _Estimates:
    """Collects the estimates of scans, and runs them as they are."""

    def __init__(self) -> None:
        self.estimates: list[ScanEstimate] = []

    def scan(self, cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        """Run a scan."""
        results = scan(cell, params, carry, xs, **options)
        if options["memory"] is not None:  # Plain autodiff has no plan.
            known = {name: value for name, value in options.items() if name != "memory"}
            explanation = explain(cell, params, carry, xs, memory=options["memory"], **known)
            scope = scope_name(without_runners(cell))
            self.estimates += [
                ScanEstimate(scope, part.direction, part.part, explanation.length * part.seconds)
                for part in explanation.costs
            ]
        return results


def _overhead(times: Times, counts: Counter[str], seconds: list[float], profiled_seconds: list[float]) -> float:
    """The nanoseconds that the profiler takes in all runs: what a run under it takes longer, by its median.

    Other work may hold up most runs under the profiler, and none of the others. So the profiler takes no longer than
    its slowest records do. If even that is more than the operations took, they take the same share of both runs.
    """
    plain, profiled = median(seconds), median(profiled_seconds)
    overhead = min(1e9 * len(seconds) * max(0.0, profiled - plain), _LONGEST_RECORD * counts.total())
    taken = sum(times.within.values()) + sum(times.between.values())
    return overhead if overhead < taken else taken * max(0.0, 1 - plain / profiled)


def _without_overhead(times: Times, counts: Counter[str], overhead: float) -> Times:
    """The times without what the profiler took: the same for each operation that it records, and no more than its time.

    It writes a record before and after an operation, so what it takes is in the time of operations, and of the loops
    around them.
    """
    parts = [times.within, times.between]
    means = {(part, name): parts[part][name] / counts[name] for part in (0, 1) for name in parts[part]}
    remaining, recorded, each = overhead, sum(counts[name] for _, name in means), 0.0
    for (_, name), time in sorted(means.items(), key=lambda item: item[1]):
        each = remaining / recorded
        if time >= each:
            break
        remaining, recorded = remaining - time * counts[name], recorded - counts[name]
    kept = [{name: max(0.0, time - each * counts[name]) for name, time in part.items()} for part in parts]
    return Times(*kept)


def _scope_times(times: Times, operations: Operations, counts: Counter[str], runs: int) -> list[ScopeTime]:
    step_by_step, at_once = (defaultdict[tuple[str, str], float](float) for _ in range(2))
    ran = Counter[tuple[str, str]]()
    for name, time in [*times.within.items(), *times.between.items()]:
        where = step_by_step if operations.is_step_by_step(name) else at_once
        where[_key(operations[name])] += 1e-9 * time / runs
    for name, count in counts.items():
        ran[_key(operations[name])] += 0 if operations[name].is_container else count
    rows = [ScopeTime(*key, step_by_step[key], at_once[key], ran[key] // runs) for key in {*step_by_step, *at_once}]
    return sorted(rows, key=lambda row: -row.seconds)


def _key(operation: Operation) -> tuple[str, str]:
    return "/".join(operation.scope.path), operation.scope.direction


def _loop_times(times: Times, operations: Operations, counts: Counter[str], runs: int) -> list[LoopTime]:
    ran = {loop for name in counts for loop in (*operations[name].loops, name)}
    seconds = Counter[str]()
    for name, time in [*times.within.items(), *times.between.items()]:
        around = operations[name].loops
        seconds.update(dict.fromkeys((*around, name) if name in operations.loops else around, 1e-9 * time / runs))
    return [
        LoopTime(
            loop=name,
            scope="/".join(loop.scope.path),
            direction=loop.scope.direction,
            iterations=loop.iterations,
            seconds=seconds[name],
            between=1e-9 * times.between.get(name, 0.0) / runs,
        )
        for name, loop in operations.loops.items()
        if name in ran
    ]
