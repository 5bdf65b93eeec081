"""Compile rows, check that they agree, and time them in turns."""

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.result import Runner
from benchmarks.rows import JaxRow
from rnnscan.insight import kept_bytes, temporary_bytes


SECONDS_PER_ROW = 1.0
MOST_ROUNDS = 100


def prepare_jax(row: JaxRow, *, compilations: int = 1, kept: bool = True) -> Runner:
    """Compile a row and count its bytes. The fastest of several compilations counts.

    Args:
        row: the row.
        compilations: how often to compile the training step.
        kept: whether to count the residuals, which takes two traces.
    """
    differentiated = tuple(range(len(row.arguments)))
    arguments = (*row.arguments, *row.data)
    seconds = []
    for _ in range(compilations):
        train, took = _compile(jax.value_and_grad(row.loss, differentiated), arguments)
        seconds.append(took)
    # Compiled when it first runs: not every row's is timed.
    forward = jax.jit(row.loss)
    kept_all = kept_bytes(row.loss, *arguments) if kept else None
    return Runner(
        forward=lambda: jax.block_until_ready(forward(*arguments)),
        train=lambda: jax.block_until_ready(train(*arguments)),
        kept=kept_all,
        kept_without_params=None if kept_all is None else kept_all - _kept_params_bytes(row),
        temporary=temporary_bytes(train),
        compile_seconds=min(seconds),
    )


def warm_compiler() -> None:
    """Compile something, so that the first row's compile time excludes the compiler's start."""
    _compile(jax.grad(lambda x: lax.scan(lambda carry, _: (jnp.tanh(carry @ carry), None), x, None, 4)[0].sum()), _ONES)


def check_agreement(row: str, result: Any, reference: Any, tolerance: float) -> None:
    """Raise an ArithmeticError if a row's loss or gradients differ from the reference.

    Args:
        row: the row's name.
        result: its loss and gradients.
        reference: the loss and gradients of plain autodiff.
        tolerance: the largest norm of a leaf's difference, relative to the leaf's norm.
    """
    differences = jax.tree.map(_relative_difference, result, reference)
    for path, difference in jax.tree_util.tree_leaves_with_path(differences):
        if not difference <= tolerance:
            raise ArithmeticError(
                f"{row}: (loss, gradients){jax.tree_util.keystr(path)} must be within {tolerance:.0e} of plain "
                f"autodiff, relative to its norm; got {difference:.1e}."
            )


def take_turns(
    runs: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    report: Callable[[int, int], None],
    seconds: float = SECONDS_PER_ROW,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Run all rows in every round, so that other load slows all of them alike.

    Args:
        runs: by row, "plain" among them.
        rounds: the least number of rounds; there are more if the plain row takes less time in them than `seconds`.
        report: called with the number of the round and of all rounds.
        seconds: that time.
        clock: what tells the time in seconds.

    Returns:
        The seconds of each round, by row.
    """
    for run in runs.values():
        run()
    enough = math.ceil(seconds / _seconds(runs["plain"], clock))
    rounds = max(rounds, min(enough, MOST_ROUNDS))
    times: dict[str, list[float]] = {row: [] for row in runs}
    order = list(runs)
    shuffle = random.Random(0).shuffle
    for number in range(1, rounds + 1):
        report(number, rounds)
        # Shuffled, because a row inherits caches and threads from the row before it.
        shuffle(order)
        for row in order:
            times[row].append(_seconds(runs[row], clock))
    return times


_ONES = (jax.ShapeDtypeStruct((8, 8), jnp.float32),)


def _seconds(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def _compile(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    """Trace and compile from empty caches, which the rows would share."""
    jax.clear_caches()
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled, time.perf_counter() - start


def _kept_params_bytes(row: JaxRow) -> int:
    """Bytes of the residuals that are parameters."""
    closed = jax.make_jaxpr(lambda *arguments: jax.vjp(row.loss, *arguments)[1])(*row.arguments, *row.data)
    leaves = len(jax.tree.leaves(row.arguments[0]))
    params = {id(variable) for variable in closed.jaxpr.invars[:leaves]}
    kept = [variable.aval for variable in closed.jaxpr.outvars if id(variable) in params]
    return sum(aval.size * aval.dtype.itemsize for aval in kept)


def _relative_difference(value: Any, reference: Any) -> float:
    scale = float(jnp.linalg.norm(reference))
    return float(jnp.linalg.norm(value - reference)) / (scale or 1.0)
