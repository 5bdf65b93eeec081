"""Loops whose number of steps is known only when they run. JAX does not differentiate them.

Rows of a batch may each have their own number, along the first axes of their values. A loop goes on for the last of
them, and what the others have is held. `lax.while_loop` under `jax.vmap` would select the stacks of all steps too, at
every step, which takes time with the square of their number (docs/decisions.md, "One condition for all examples").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan._util.step_wrappers import select_rows
from rnnscan._util.varying import vary_as
from rnnscan._util.zeros import zeros_of_type, zeros_of_value
from rnnscan.engine.loops.indexing import item_of, items_of, put_item, put_items
from rnnscan.engine.loops.time_loop import BodyInPlace


# (carry, x) -> (carry, y)
Step: TypeAlias = Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]


def hold(runs: Any, new: Any, old: Any) -> Any:
    """The new values of rows that run, and the old ones of the others.

    Args:
        runs: whether each row runs. Without rows it is true.
        new: a pytree.
        old: a pytree like it.
    """
    return select_rows(runs, new, old) if runs.ndim else new


def stopping(step: Callable[..., Any], holds: Callable[[Any], Any], y: Any) -> Callable[..., Any]:
    """A step that holds the carry where a condition is false, with y of zeros. It also returns the condition.

    Args:
        step: `(carry, x) -> (carry, y)`, of pytrees.
        holds: `carry -> whether the step runs`, of each row.
        y: the types of y.
    """

    def step_or_hold(carry: Any, x: Any) -> tuple[Any, Any, Any]:
        runs = holds(carry)
        held = carry, jax.tree.map(zeros_of_value, y)
        if runs.ndim:
            return *(hold(runs, *pair) for pair in zip(step(carry, x), held, strict=True)), runs
        return *lax.cond(runs, step, lambda *_: held, carry, x), runs

    return step_or_hold


def scan_while(
    step: Step,
    holds: Callable[[list[Any]], Any],
    carry: Sequence[Any],
    xs: Sequence[Any],
    ys: Sequence[Any],
    length: int,
) -> tuple[list[Any], list[Any]]:
    """`lax.scan` that stops before the first step at which a condition is false. Later ys are zero.

    Args:
        step: a step.
        holds: `carry -> whether to run another step`, of each row.
        carry: the initial carry.
        xs: leaves `(length, ...)`.
        ys: the types of the ys of a step.
        length: the most steps.
    """

    def run_next(state: Any) -> Any:
        at, runs, carry, stacks = state
        new_carry, new = step(carry, [item_of(leaf, at) for leaf in xs])
        new = hold(runs, new, jax.tree.map(lambda leaf: lax.full_like(leaf, 0), new))
        stacks = [put_item(stack, at, item) for stack, item in zip(stacks, new, strict=True)]
        carry = hold(runs, new_carry, carry)
        return lax.add(at, np.int32(1)), runs & holds(carry), carry, stacks

    def goes_on(state: Any) -> Any:
        return (state[0] < length) & jnp.any(state[1])

    stacks = [zeros_of_type(aval, length) for aval in ys]
    state = (np.int32(0), holds([*carry]), [*carry], stacks)
    _, _, final, stacks = lax.while_loop(goes_on, run_next, state)
    return final, stacks


@dataclass(frozen=True)
class CountedChunks:
    """The chunks of the first `count` steps of a sequence.

    After the whole chunks the remaining steps run in smaller ones, and at last one by one, so that no step runs that
    is not counted. `TimeLoop` is the same for a known number of steps.

    Attributes:
        length: the most steps.
        chunk: steps of a chunk.
        count: the number of steps.
    """

    length: int
    chunk: int
    count: Any

    def run_in_place(
        self, body: BodyInPlace, carry: Any, ys: Sequence[Any], of_piece: Sequence[Any] = ()
    ) -> tuple[Any, list[Any], list[Any]]:
        """Run chunk by chunk, from the last one to the first, as `TimeLoop.run_in_place` does.

        Args:
            body: runs a chunk, whose number it is not given.
            carry: the carry before the first chunk to run.
            ys: the types of the ys of a step.
            of_piece: none: no values of whole chunks are stacked.

        Returns:
            The carry, ys, which are zero after the counted steps, and nothing.
        """
        stacks = [zeros_of_type(aval, self.length) for aval in ys]
        carry, stacks = vary_as((carry, stacks), [self.count])  # Under `shard_map` each device may have its own count.
        for size, first, number in reversed(self._parts()):

            def run_next(loop_state: Any, size: int = size, first: Any = first) -> Any:
                left, carry, stacks = loop_state
                at = lax.sub(left, np.int32(1))
                begin = first + at * size
                carry, new, _ = body(carry, begin, None, size)
                return at, carry, [put_items(stack, begin, items) for stack, items in zip(stacks, new, strict=True)]

            _, carry, stacks = lax.while_loop(lambda loop_state: loop_state[0] > 0, run_next, (number, carry, stacks))
        return carry, stacks, []

    def _parts(self) -> list[tuple[int, Any, Any]]:
        """The chunks of one size: the size, the first step, and how many there are."""
        parts, done = [], lax.full_like(self.count, 0)
        for size in sorted({self.chunk, max(1, self.chunk // 8), 1}, reverse=True):
            number = (self.count - done) // size
            parts.append((size, done, number))
            done = done + number * size
        return parts


def reversed_steps(stack: Any, count: Any) -> Any:
    """The first `count` steps of a stack from the last of them to the first, and after them the others, likewise."""
    twice = lax.concatenate([lax.rev(stack, [0])] * 2, 0)
    return items_of(twice, stack.shape[0] - count, stack.shape[0])
