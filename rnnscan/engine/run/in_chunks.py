"""Run a scan chunk by chunk: one driver for the passes of every kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from rnnscan.engine.loops.batched_values import Chunk, Source, all_of
from rnnscan.engine.loops.indexing import item_of
from rnnscan.engine.loops.stopping import CountedChunks
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.run.runner import Runner
from rnnscan.ir.program import values_of


@dataclass(frozen=True)
class Recompute:
    """A run over each chunk before the main one, the other way round. It computes leaves of the carry again.

    Attributes:
        runner: runs it.
        starts: for each leaf the value before the first step of all, and the stack of those before each whole chunk.
    """

    runner: Runner
    starts: Sequence[tuple[Any, Any]]

    def __call__(self, steps: int, known: dict[Any, Any], number: Any) -> dict[Any, Any]:
        """The values of a chunk, with those leaves."""
        before = [first if number is None else item_of(stack, number) for first, stack in self.starts]
        chunk = self.runner(steps, known, before)[2]
        return chunk.varying | {atom: chunk.stacked(atom) for atom in values_of(self.runner.split.program.stacked)}


def run_in_chunks(
    runner: Runner,
    chunks: TimeLoop | CountedChunks,
    sources: Sequence[Source],
    state: tuple[list[Any], list[Any]],
    *,
    recompute: Recompute | None = None,
    starting: Sequence[int] = (),
    finish: Callable[[Chunk, list[Any]], list[Any]] | None = None,
) -> tuple[tuple[list[Any], list[Any]], list[Any], list[Any]]:
    """Run all chunks.

    Args:
        runner: runs a chunk.
        chunks: the chunks, in their order.
        sources: where the known values of the program come from.
        state: the carry, and the sums.
        recompute: what runs before each.
        starting: positions of the carry leaves to return before each whole chunk.
        finish: makes what is returned of a chunk from its stacks, in a loop over a known number of steps that JAX can
            differentiate; None: the stacks are returned, and the loop runs in place.

    Returns:
        The carry and the sums, the stacked values of the program, and the leaves `starting`.
    """
    program = runner.split.program

    def run_chunk(state: Any, parts: Sequence[Any], number: Any, steps: int) -> tuple[Any, Chunk, list[Any]]:
        # The leaves that are computed again come last among those that are known.
        known = dict(zip(program.known, parts, strict=False))
        if recompute is not None:
            known = recompute(steps, known, number)
        carry, sums, chunk = runner(steps, known, *state)
        return (carry, sums), chunk, [chunk.stacked(atom) for atom in program.stacked]

    def run_at(state: Any, first: Any, number: Any, steps: int) -> tuple[Any, list[Any], list[Any]]:
        after, chunk, stacks = run_chunk(state, [source(first, steps) for source in sources], number, steps)
        return after, stacks, chunk.starts or [lax.expand_dims(state[0][index], [0]) for index in starting]

    if finish is None:
        types = [atom.aval for atom in program.stacked], [program.carry[index].aval for index in starting]
        return chunks.run_in_place(run_at, state, *types)

    def run_on(state: Any, xs: Sequence[Any], steps: int) -> tuple[Any, list[Any], list[Any]]:
        after, chunk, stacks = run_chunk(state, xs, None, steps)
        return after, finish(chunk, stacks), [state[0][index] for index in starting]

    assert isinstance(chunks, TimeLoop)
    return chunks.run(run_on, state, [all_of(source, chunks.length) for source in sources])
