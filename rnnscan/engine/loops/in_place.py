"""One loop over all steps in place, in place of one for each chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from rnnscan.engine.loops.indexing import item_of, put_item
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.loops.unrolled import LoopStep
from rnnscan.ir.program import Value


@dataclass(frozen=True)
class InPlace:
    """How one loop runs all steps, instead of one for each chunk.

    After each step it writes some carry leaves to the place of the chunk that runs next. The last step before that
    chunk leaves there the start of the chunk.

    Attributes:
        chunks: the loop over chunks.
        starting: those carry leaves, as positions in the carry of the loop.
    """

    chunks: TimeLoop
    starting: Sequence[int]

    def scan(
        self, step: LoopStep, state: tuple[Any, Any], xs: Any, emitted: Sequence[Value], *, unroll: int | bool
    ) -> tuple[tuple[Any, Any], list[Any], list[Any]]:
        """Run the loop.

        Args:
            step: a step, `((carry, sums), (None, x)) -> ((carry, sums), y)`.
            state: the carry before the first step to run, and the sums.
            xs: the inputs of all steps, stacked.
            emitted: the values that each step returns.
            unroll: as in `lax.scan`.

        Returns:
            The carry after the last step and the sums, the emitted values, stacked, and the carry leaves before each
            whole chunk.
        """

        def run_step(whole: Any, at: Any, _: Any, __: int) -> tuple[Any, list[Any]]:
            state, starts = whole
            state, new = step(state, (None, [item_of(stack, at) for stack in xs]))
            return (state, self._written(starts, at, state[0])), [lax.expand_dims(leaf, [0]) for leaf in new]

        steps = TimeLoop(self.chunks.length, 1, self.chunks.reverse)
        starts = [lax.broadcast(state[0][position], (self.chunks.count + 1,)) for position in self.starting]
        types = [value.aval for value in emitted]
        (state, starts), stacks = steps.run_in_place(run_step, (state, starts), types, unroll=unroll)
        first = 1 if self.chunks.reverse else 0
        return state, stacks, [lax.slice_in_dim(stack, first, first + self.chunks.count) for stack in starts]

    def _written(self, starts: Sequence[Any], at: Any, carry: Sequence[Any]) -> list[Any]:
        """The starts after a step. They have a place after the last chunk too, or before the first."""
        if not self.starting:
            return []
        chunk = self.chunks.piece
        # The shorter chunk runs first.
        place = at if self.chunks.reverse else lax.add(at, np.int32(chunk - self.chunks.rest))
        place = lax.div(place, np.int32(chunk))
        return [put_item(start, place, carry[position]) for start, position in zip(starts, self.starting, strict=True)]
