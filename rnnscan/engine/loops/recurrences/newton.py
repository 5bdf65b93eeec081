"""Recurrences that are solved for all steps: exactly where they are linear, else by Newton's method."""

from collections.abc import Sequence
from typing import Any

from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.newton_solve import Solver
from rnnscan.engine.loops.time_loop import before_and_after


def run_newton(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run a recurrence. See `Executor`.

    Args:
        recurrence: the recurrence.
        chunk: the values that it reads.
        start: its leaves before the first step to run.
        reverse: whether the steps run from the last to the first.
        unroll: of the loop that runs step by step where Newton's method does not converge.
    """
    cycle = recurrence.cycle
    newton = recurrence.newton if recurrence.newton_solves else None
    axes = tuple(0 if chunk.varies(value) else None for value in cycle.reads)
    solver = Solver(cycle, axes, newton, reverse, unroll)
    after, *counts = solver.solve(start, [*map(chunk.read, cycle.reads)], chunk.steps)
    if newton is not None:
        chunk.counts.append(tuple(counts))
    return before_and_after(after, start, reverse=reverse)
