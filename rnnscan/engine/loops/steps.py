"""The loop over steps. It reads the values of a step where they lie, and writes what it stacks in place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jax import lax

from rnnscan.engine.loops.batched_values import Source
from rnnscan.engine.loops.indexing import moved, put_item
from rnnscan.engine.loops.time_loop import TimeLoop


# (carry, sums), values of a step -> (carry, sums), values to stack
LoopStep: TypeAlias = Callable[[tuple[Any, Any], Sequence[Any]], tuple[tuple[Any, Any], Sequence[Any]]]


@dataclass(frozen=True)
class Starts:
    """Carry leaves before each chunk, which one loop over all steps writes in place of a loop for each chunk.

    After each step it writes them to the place of the chunk that runs next. The last step before that chunk leaves
    there the start of the chunk.

    Attributes:
        chunks: the loop over chunks.
        leaves: positions of these leaves in the carry of the loop.
    """

    chunks: TimeLoop
    leaves: Sequence[int]

    def first(self, carry: Sequence[Any]) -> list[Any]:
        """The stacks before the first step. They have a place after the last chunk too, or before the first."""
        return [lax.broadcast(carry[index], (self.chunks.count + 1,)) for index in self.leaves]

    def after(self, stacks: Sequence[Any], at: Any, carry: Sequence[Any]) -> list[Any]:
        """The stacks after a step."""
        chunk = self.chunks.piece
        # The shorter chunk runs first.
        place = at if self.chunks.reverse else lax.add(at, np.int32(chunk - self.chunks.rest))
        place = lax.div(place, np.int32(chunk))
        return [put_item(stack, place, carry[index]) for stack, index in zip(stacks, self.leaves, strict=True)]

    def of_chunks(self, stacks: Sequence[Any]) -> list[Any]:
        """The leaves before each whole chunk."""
        first = 1 if self.chunks.reverse else 0
        return [lax.slice_in_dim(stack, first, first + self.chunks.count) for stack in stacks]


def run_steps(
    step: LoopStep,
    state: tuple[Any, Any],
    sources: Sequence[Source],
    types: Sequence[Any],
    loop: TimeLoop,
    *,
    hold: int = 0,
    starts: Starts | None = None,
) -> tuple[tuple[Any, Any], list[Any], list[Any]]:
    """Run all steps.

    Args:
        step: runs a step.
        state: the carry before the first step to run, and the sums.
        sources: where the values of a step come from.
        types: the types of the values to stack.
        loop: the steps. Those of a piece are one iteration.
        hold: the steps of an iteration between two barriers on the carry; 0: there are none. Without them XLA makes the
            cotangent of a step from the products of all steps before it in the iteration, which it keeps until then.
        starts: the leaves before each chunk to return; None: there are none.

    Returns:
        The carry after the last step and the sums, the stacks, and those leaves.
    """

    def run_iteration(whole: Any, first: Any, _: Any, steps: int) -> tuple[Any, list[Any], list[Any]]:
        state, before = whole
        parts, ys = [source(first, steps) for source in sources], dict[int, list[Any]]()
        blocks = [part.copied() for part in parts] if steps > 1 else []
        for done, at in enumerate(range(steps)[:: -1 if loop.reverse else 1], start=1):
            x = [block[at] for block in blocks] if blocks else [part.at(0) for part in parts]
            (carry, sums), y = step(state, x)
            ys[at] = [lax.expand_dims(leaf, [0]) for leaf in y]
            before = starts.after(before, moved(first, at), carry) if starts else before
            state = (lax.optimization_barrier(carry) if hold and done % hold == 0 else carry), sums
        in_order = [ys[at] for at in range(steps)]
        stacks = ys[0] if steps == 1 else [lax.concatenate(leaves, 0) for leaves in zip(*in_order, strict=True)]
        return (state, before), stacks, []

    before = starts.first(state[0]) if starts else []
    (state, before), stacks, _ = loop.run_in_place(run_iteration, (state, before), types)
    return state, stacks, starts.of_chunks(before) if starts else []
