"""Delays: the new leaves do not depend on the leaves."""

from collections.abc import Sequence
from typing import Any

from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.time_loop import before_and_after


def run_delay(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run a delay. See `Executor`."""
    after = [chunk.stacked(atom) for atom in recurrence.cycle.new_leaves]
    return before_and_after(after, start, reverse=reverse)
