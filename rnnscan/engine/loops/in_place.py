"""Loops that read their inputs and write their results in place.

`lax.scan` cuts what it is given in items, and stacks what it makes. Loops within loops then copy each item twice. Under
`jax.vmap` it also moves the steps to the front of all stacks, and others move them back. Here the stacks are in the
state of the loop, or outside it. But JAX's derivative of such a loop takes time with the square of the steps, so
another function must stand for it (`own_derivative.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jax import lax

from rnnscan._zeros import zeros_of_type
from rnnscan.engine.loops.chunked_scan import Chunks
from rnnscan.engine.loops.indexing import item_of, put_item, put_items
from rnnscan.engine.loops.unrolled import LoopStep
from rnnscan.ir.program import Value


# (state, first step, number of the whole chunk or None, steps) -> (state, what each step made)
RunPart: TypeAlias = Callable[[Any, Any, Any, int], tuple[Any, list[Any]]]


@dataclass(frozen=True)
class InPlace:
    """How one loop runs all steps, instead of one for each chunk.

    After each step it writes some carry leaves to the place of the chunk that runs next. The last step before that
    chunk leaves there what the chunk starts with.

    Attributes:
        chunks: the chunks.
        starting: those carry leaves, as positions in the carry of the loop.
    """

    chunks: Chunks
    starting: Sequence[int]

    def scan(
        self, step: LoopStep, state: tuple[Any, Any], given: Any, made: Sequence[Value], *, unroll: int | bool
    ) -> tuple[tuple[Any, Any], list[Any], list[Any]]:
        """Run the loop.

        Args:
            step: a step, `((carry, sums), (None, given)) -> ((carry, sums), made)`.
            state: the carry before the first step to run, and the sums.
            given: what each step is given, stacked.
            made: what each step makes.
            unroll: as in `lax.scan`.

        Returns:
            The carry after the last step and the sums, what each step made, stacked, and the carry leaves before each
            whole chunk.
        """
        steps = self.chunks.length

        def run_step(whole: Any) -> Any:
            ran, state, stacks, starts = whole
            at = lax.sub(np.int32(steps - 1), ran) if self.chunks.from_end else ran
            state, new = step(state, (None, [item_of(stack, at) for stack in given]))
            stacks = [put_item(stack, at, leaf) for stack, leaf in zip(stacks, new, strict=True)]
            return lax.add(ran, np.int32(1)), state, stacks, self._written(starts, ran, state[0])

        stacks = [zeros_of_type(value.aval, steps, new_axis=True) for value in made]
        starts = [lax.broadcast(state[0][position], (self.chunks.count + 1,)) for position in self.starting]
        _, state, stacks, starts = _repeat(run_step, (np.int32(0), state, stacks, starts), steps, unroll=unroll)
        first = 1 if self.chunks.from_end else 0
        return state, stacks, [lax.slice_in_dim(stack, first, first + self.chunks.count) for stack in starts]

    def _written(self, starts: Sequence[Any], ran: Any, carry: Sequence[Any]) -> list[Any]:
        """The starts after a step, before which so many ran. They have a place after the last chunk too."""
        if not self.starting:
            return []
        chunk = self.chunks.chunk
        # The shorter chunk runs first.
        place = lax.div(lax.add(ran, np.int32(chunk - self.chunks.rest)), np.int32(chunk))
        if self.chunks.from_end:
            place = lax.sub(np.int32(self.chunks.count), place)
        return [put_item(start, place, carry[position]) for start, position in zip(starts, self.starting, strict=True)]


def run_back_in_place(chunks: Chunks, run: RunPart, state: Any, made: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Run chunk by chunk, from the last to run to the first.

    Args:
        chunks: the chunks.
        run: runs a chunk. The numbers of whole chunks are in the order of the sequence.
        state: the state between chunks.
        made: the type of what each step makes.

    Returns:
        The state, and what the steps made, stacked.
    """

    def run_chunk(whole: Any) -> Any:
        ran, state, stacks = whole
        number = ran if chunks.from_end else lax.sub(np.int32(chunks.count - 1), ran)
        first = lax.mul(number, np.int32(chunks.chunk))
        if not chunks.from_end and chunks.rest:
            first = lax.add(first, np.int32(chunks.rest))
        state, stacks = run_part(state, stacks, first, number, chunks.chunk)
        return lax.add(ran, np.int32(1)), state, stacks

    def run_part(state: Any, stacks: list[Any], first: Any, number: Any, steps: int) -> tuple[Any, list[Any]]:
        state, new = run(state, first, number, steps)
        return state, [put_items(stack, first, items) for stack, items in zip(stacks, new, strict=True)]

    stacks = [zeros_of_type(aval, chunks.length, new_axis=True) for aval in made]
    _, state, stacks = _repeat(run_chunk, (np.int32(0), state, stacks), chunks.count)
    if chunks.rest:
        state, stacks = run_part(state, stacks, np.int32(chunks.first_of_shorter), None, chunks.rest)
    return state, stacks


def _repeat(run: Callable[[Any], Any], state: Any, times: int, *, unroll: int | bool = 1) -> Any:
    """Run a function of a state so many times. The first value of the state counts them.

    `lax.scan` traces its loop a second time to lower it.
    """
    if times == 1:
        return run(state)
    if unroll == 1:
        return lax.while_loop(lambda state: lax.lt(state[0], np.int32(times)), run, state)
    return lax.scan(lambda state, _: (run(state), None), state, None, length=times, unroll=unroll)[0]
