"""Where a value came from: from operand to operand of the largest magnitude, to an argument."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnscan.inside.nonfinite.locate import Level
from rnnscan.inside.nonfinite.patterns import is_inexact
from rnnscan.ir.program import Atom, Value


class Source(NamedTuple):
    """The source of a value.

    Attributes:
        place: an argument, the carry of the step before, or a constant.
        magnitude: the largest magnitude in it, or in the part of it that a step reads.
    """

    place: str
    magnitude: float


def source_of(levels: Sequence[Level], atom: Atom, places: Sequence[str]) -> Source | None:
    """The source of an operand of the innermost operation.

    Args:
        levels: the bodies around the operation, from the function to the innermost.
        atom: the operand.
        places: the function's arguments.
    """
    depth, seen = len(levels) - 1, None
    while True:
        level = levels[depth]
        makers = level.walk.body.maker
        while isinstance(atom, Value) and atom in makers:
            operands = [each for each in makers[atom].inputs if is_inexact(each)]
            if not operands:
                return None
            atom = max(operands, key=lambda each: _magnitude(level.value(each)))
        magnitude = _magnitude(level.value(atom))
        if not isinstance(atom, Value):
            return None if np.ndim(atom.value) == 0 else Source("a constant", magnitude)
        number = level.walk.body.inputs.index(atom)
        seen = magnitude if seen is None else seen
        if level.inside is None:
            return Source(places[number], seen)
        at = level.inside.operands[number]
        if at is None:
            return Source(f"the carry before step {level.inside.step}", magnitude)
        depth -= 1
        atom = levels[depth].equation.inputs[at]


def _magnitude(value: Any) -> float:
    """The largest magnitude; NaN counts as inf."""
    numbers = np.asarray(value)
    if numbers.size == 0:
        return 0.0
    largest = float(np.abs(numbers).max())
    return float("inf") if np.isnan(largest) else largest
