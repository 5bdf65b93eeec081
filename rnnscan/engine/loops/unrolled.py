"""A loop that runs several steps an iteration, and makes its carry within the iteration."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan.engine.loops.time_loop import TimeLoop


# (carry, sums), x -> (carry, sums), y
LoopStep: TypeAlias = Callable[[tuple[Any, Any], Any], tuple[tuple[Any, Any], Any]]


def counting(step: LoopStep, *, reverse: bool) -> LoopStep:
    """A step that reads its index from the state, where it follows the sums. The first item of `x` is unused."""

    def counted(state: tuple[Any, Any], x: Any) -> tuple[tuple[Any, Any], Any]:
        (carry, (sums, index)), (_, stacked) = state, x
        (carry, sums), y = step((carry, sums), (index, stacked))
        return (carry, (sums, lax.add(index, np.int32(-1 if reverse else 1)))), y

    return counted


def scan_unrolled(
    step: LoopStep, state: tuple[Any, Any], xs: Any, *, steps: int, reverse: bool, unroll: int, hold: int
) -> tuple[tuple[Any, Any], Any]:
    """Run `lax.scan` with several steps an iteration, and a barrier on the carry after every few of them.

    Without barriers XLA makes the cotangent of a step from the products of all steps before it in the iteration, and
    keeps these until then.

    Args:
        step: a step, `((carry, sums), x) -> ((carry, sums), y)`.
        state: the carry before the first step to run, and the sums.
        xs: the inputs of all steps, stacked.
        steps: the number of steps.
        reverse: from the last step to the first.
        unroll: the steps of an iteration, which leave no remainder.
        hold: the steps between two barriers.

    Returns:
        The carry after the last step and the sums, and y of all steps, stacked.
    """
    order = range(unroll)[::-1] if reverse else range(unroll)

    def run_iteration(state: tuple[Any, Any], xs: Any, _: int) -> tuple[tuple[Any, Any], Any, Any]:
        ys: list[Any] = [None] * unroll
        for count, index in enumerate(order, start=1):
            (carry, sums), ys[index] = step(state, jax.tree.map(lambda leaf, at=index: leaf[at], xs))
            state = (carry if count % hold else lax.optimization_barrier(carry)), sums
        return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *ys), ()

    return TimeLoop(steps, unroll, reverse).run(run_iteration, state, xs)[:2]
