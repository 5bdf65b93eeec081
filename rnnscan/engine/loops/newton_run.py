"""Run a loop over all steps of a chunk at once."""

from collections.abc import Sequence
from typing import Any

from rnnscan.engine.analysis.newton import Solved
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.newton_solve import Solver
from rnnscan.engine.loops.time_loop import before_each


def run_solved(
    solved: Solved, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run a loop.

    Args:
        solved: the loop.
        chunk: the values that it reads. If it has the leaves before each step, only derivatives are solved for.
        start: its leaves before the first step to run.
        reverse: whether the steps run from the last to the first.
        unroll: of the loop that runs step by step where Newton's method does not converge.

    Returns:
        The leaves before each step, stacked, and the leaves after the last step to run.
    """
    cycle = solved.cycle
    if solved.kind == "delay":
        after = [chunk.stacked(atom) for atom in cycle.new_leaves]
    else:
        newton = solved.newton if solved.newton_solves else None
        axes = tuple(0 if chunk.varies(value) else None for value in cycle.reads)
        solver = Solver(cycle, axes, newton, reverse, unroll)
        is_known = all(leaf in chunk.varying for leaf in cycle.leaves)
        known = [*map(chunk.read, cycle.leaves)] if is_known else None
        after, *counts = solver.solve(start, [*map(chunk.read, cycle.reads)], chunk.steps, known)
        if newton is not None:
            chunk.counts.append(tuple(counts))
    last = 0 if reverse else -1
    before = [before_each(leaf, start_leaf, reverse=reverse) for leaf, start_leaf in zip(after, start, strict=True)]
    return before, [leaf[last] for leaf in after]
