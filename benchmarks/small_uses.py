"""Small loops by plain `lax.scan` and by rnnscan, in turns."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import rnnscan as rs
from benchmarks.measure import MOST_ROUNDS, check_agreement, take_turns
from benchmarks.small_steps import USES, Use


# XLA compiles a loop to one kernel if a step touches fewer bytes. The limit of jax 0.10.2 is 1 KiB. jax 0.12 compiles a
# carry of 16 MiB so.
FLAG = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536"
_TIMES = ("rnnscan, ms", "ratio")
HEADINGS = ("use", "forward: plain, ms", *_TIMES, "training: plain, ms", *_TIMES, "kernels", "compile")
# Products in float32 are summed in another order, and a recurrence amplifies that.
_TOLERANCE = 1e-3
_SECONDS = 0.2
_COMPILATIONS = 2


@dataclass(frozen=True)
class Pair:
    """Processor times in seconds, of plain `lax.scan` and of rnnscan, by the round."""

    plain: Sequence[float]
    rnnscan: Sequence[float]

    @property
    def ratio(self) -> float:
        return median(own / plain for own, plain in zip(self.rnnscan, self.plain, strict=True))

    @property
    def cells(self) -> tuple[str, ...]:
        return f"{1e3 * median(self.plain):.2f}", f"{1e3 * median(self.rnnscan):.2f}", f"{self.ratio:.2f}"


@dataclass(frozen=True)
class UseResult:
    """The times of a use.

    Attributes:
        forward: the sum of the outputs.
        training: the same with its gradient by the parameters.
        compiling: tracing and compiling both.
        kernels: how many of the loops of rnnscan's training step are one kernel, such as "2 of 2".
    """

    forward: Pair
    training: Pair
    compiling: Pair
    kernels: str


def set_flag() -> None:
    """Let XLA compile larger loops to one kernel. It reads the flag once, before it compiles the first program."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()


def measure(name: str, steps: int, rounds: int) -> UseResult:
    """The times of a use. Raises an ArithmeticError if values or gradients differ."""
    use = USES[name](steps)
    losses = {form: partial(_loss, run, use) for form, run in FORMS.items()}
    compiling, runs, kernels = {}, dict[str, tuple[Callable[[], Any], ...]](), ""
    for form, loss in losses.items():
        functions = loss, jax.value_and_grad(loss)
        (_, program), compiling[form] = _compiled(functions, use.params)
        kernels = _loops_of_one_kernel(program)
        runs[form] = tuple(called(function, use.params) for function in functions)
    check_agreement(name, runs["rnnscan"][1](), runs["plain"][1](), _TOLERANCE)
    forward, training = (
        Pair(**seconds_in_turns({form: calls[index] for form, calls in runs.items()}, rounds)) for index in range(2)
    )
    return UseResult(forward, training, Pair(**compiling), kernels)


def table_rows(results: Mapping[str, UseResult]) -> list[tuple[str, ...]]:
    """A row a use, then the median and the worst of the ratios."""
    rows = [
        (name, *result.forward.cells, *result.training.cells, result.kernels, f"{result.compiling.ratio:.2f}")
        for name, result in results.items()
    ]
    kinds = [[getattr(result, kind).ratio for result in results.values()] for kind in ("forward", "training")]
    compiling = [result.compiling.ratio for result in results.values()]
    for title, summary in (("median", median), ("worst", max)):
        forward, training, compile_ratio = (f"{summary(ratios):.2f}" for ratios in (*kinds, compiling))
        rows.append((title, "", "", forward, "", "", training, "", compile_ratio))
    return rows


def seconds_in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The processor time of a call of each row, "plain" among them, in each round."""
    runs["plain"]()
    start = time.process_time()
    runs["plain"]()
    # Single calls of 0.1 ms vary too much.
    calls = max(1, math.ceil(_SECONDS / MOST_ROUNDS / max(time.process_time() - start, 1e-6)))
    several = {row: partial(_repeated, run, calls) for row, run in runs.items()}
    times = take_turns(several, rounds=rounds, report=lambda *_: None, seconds=_SECONDS, clock=time.process_time)
    return {row: [one / calls for one in seconds] for row, seconds in times.items()}


def called(function: Callable[[Any], Any], params: Any) -> Callable[[], Any]:
    """A call of the compiled function. `jax.jit` calls it faster than `lower(...).compile()` does."""
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(params))


def _plain(use: Use, params: Any) -> Any:
    return lax.scan(partial(use.cell, params), use.carry, use.xs)[1]


def _rnnscan(use: Use, params: Any) -> Any:
    return rs.scan(use.cell, params, use.carry, use.xs)[1]


FORMS: dict[str, Callable[[Use, Any], Any]] = {"plain": _plain, "rnnscan": _rnnscan}


def _repeated(run: Callable[[], Any], calls: int) -> None:
    for _ in range(calls):
        run()


def _loss(run: Callable[[Use, Any], Any], use: Use, params: Any) -> Any:
    return jnp.sum(run(use, params))


def _compiled(functions: tuple[Callable[[Any], Any], ...], params: Any) -> tuple[list[Any], list[float]]:
    """The compiled functions, and the least processor time that tracing and compiling all of them took."""
    seconds = []
    for _ in range(_COMPILATIONS):
        jax.clear_caches()
        start = time.process_time()
        compiled = [jax.jit(function).lower(params).compile() for function in functions]
        seconds.append(time.process_time() - start)
    return compiled, [min(seconds)]


def _loops_of_one_kernel(program: Any) -> str:
    text = program.as_text()
    return f"{text.count('xla_cpu_small_call')} of {text.count(' while(')}"
