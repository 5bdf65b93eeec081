"""Run a sequence in chunks of steps, where the number of steps is known only when it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan.engine.loops.counted_loop import Blocks, counted_loop
from rnnscan.engine.loops.time_loop import Body


@dataclass(frozen=True)
class CountedChunks:
    """The chunks of the first `count` steps of a sequence.

    After the whole chunks the remaining steps run in smaller ones, and at last one by one, so that no step runs that
    is not counted. `TimeLoop` is the same for a known number of steps.

    Attributes:
        length: the most steps.
        chunk: steps of a chunk.
        count: number of steps.
    """

    length: int
    chunk: int
    count: Any

    def run_back(self, run: Body, state: Any, steps: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Run chunk by chunk, from the last one to the first.

        Args:
            run: runs a chunk.
            state: the state between chunks.
            steps: leaves `(length, ...)`.

        Returns:
            The state, and leaves `(length, ...)` that are zero after the counted steps.
        """
        leaves, structure = jax.tree.flatten(state)
        stacks: list[Any] = []
        for size, blocks, count, limit in reversed(self._parts()):

            def iteration(state: list[Any], steps: list[Any], _: list[Any], size: int = size) -> Any:
                new_state, new_steps, _ = run(jax.tree.unflatten(structure, state), steps, [], size)
                return jax.tree.leaves(new_state), new_steps, []

            leaves, part_stacks, _ = counted_loop(
                iteration, leaves, steps, [], count=count, limit=limit, blocks=blocks, back=True
            )
            # Each is zero at the steps of the others.
            stacks = [*map(jnp.add, stacks, part_stacks)] if stacks else part_stacks
        return jax.tree.unflatten(structure, leaves), stacks

    def _parts(self) -> list[tuple[int, Blocks, Any, int]]:
        """The loops over chunks of one size: the size, the blocks, the number of chunks and the most there can be."""
        parts, done, longest = [], jnp.zeros_like(self.count), self.length
        for size in _sizes(self.chunk):
            count = (self.count - done) // size
            parts.append((size, Blocks(self.length, size, done), count, max(1, longest // size)))
            done, longest = done + count * size, min(longest, size - 1)
        return parts


def _sizes(chunk: int) -> list[int]:
    """Sizes of chunks, each to cut what the one before leaves."""
    return sorted({chunk, max(1, chunk // 8), 1}, reverse=True)
