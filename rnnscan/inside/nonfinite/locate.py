"""Find the operation to blame after a walk back: in loops at the first step, in branches, in the function itself."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnscan.inside.nonfinite.walk import KINDS, Inside, Walk
from rnnscan.ir.program import Atom, Equation, Value


@dataclass(frozen=True)
class Level:
    """A body around the operation to blame.

    Attributes:
        walk: the walk through it.
        position: the position of the operation to blame, or of the loop or branch with it.
        inside: how the body follows from the one around; None: it is the function.
    """

    walk: Walk
    position: int
    inside: Inside | None

    @property
    def equation(self) -> Equation:
        """The operation to blame, or the loop or branch with it."""
        return self.walk.body.equations[self.position]

    def value(self, atom: Atom) -> Any:
        """A value of the body."""
        return np.asarray(self.walk.values[atom] if isinstance(atom, Value) else atom.value)


@dataclass(frozen=True)
class Blamed:
    """The operation to blame.

    Attributes:
        levels: the bodies around it, from the function to the innermost.
        result: the position of its result that is not finite.
        index: the first element of it that the operation makes.
    """

    levels: tuple[Level, ...]
    result: int
    index: tuple[int, ...]

    @property
    def equation(self) -> Equation:
        """The operation."""
        return self.levels[-1].equation


def blame(walk: Walk) -> Blamed | None:
    """The first operation to blame; None if the elements are those of arguments or constants."""
    kind = next((kind for kind in KINDS if walk.first(kind) is not None), None)
    levels: list[Level] = []
    inside: Inside | None = None
    while kind is not None:
        position = walk.first(kind)
        assert position is not None
        levels.append(Level(walk, position, inside))
        if position in walk.births:
            return Blamed(tuple(levels), *_first_element(walk, position, kind))
        inside = walk.inside[position][kind]
        assert inside is not None
        walk = inside.walk
    return None


def _first_element(walk: Walk, position: int, kind: int) -> tuple[int, tuple[int, ...]]:
    """The result and the index of the first element that an operation makes."""
    masks = [np.zeros(1, bool) if each is None else np.asarray(each[kind]) for each in walk.births[position]]
    result = next(number for number, mask in enumerate(masks) if mask.any())
    place = np.unravel_index(int(masks[result].argmax()), masks[result].shape)
    return result, tuple(int(axis) for axis in place)
