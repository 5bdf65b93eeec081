"""Leaves of a carry that every step returns as they are.

The cotangent of a sum is one: with `c' = c + f(x)`, the cotangent of c is that of c'. As a carry it would be stacked at
each step for the products that read it. It is the same at every step, so it need not be a carry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar


LeafT = TypeVar("LeafT")


@dataclass(frozen=True)
class Unchanged:
    """The leaves of a carry that a step does not change.

    Attributes:
        positions: their positions.
        size: the number of all leaves.
    """

    positions: frozenset[int]
    size: int

    @staticmethod
    def between(carry: Sequence[object], new_carry: Sequence[object]) -> "Unchanged":
        """Those of a carry and a new carry, as values of a program."""
        pairs = enumerate(zip(carry, new_carry, strict=True))
        return Unchanged(frozenset(index for index, (leaf, new) in pairs if new is leaf), len(carry))

    def chosen(self, leaves: Sequence[LeafT]) -> list[LeafT]:
        """The unchanged ones of all leaves."""
        return [leaf for index, leaf in enumerate(leaves) if index in self.positions]

    def others(self, leaves: Sequence[LeafT]) -> list[LeafT]:
        """The others of all leaves."""
        return [leaf for index, leaf in enumerate(leaves) if index not in self.positions]

    def joined(self, unchanged: Sequence[LeafT], changed_leaves: Sequence[LeafT]) -> list[LeafT]:
        """All leaves."""
        unchanged_leaves, changed = iter(unchanged), iter(changed_leaves)
        return [next(unchanged_leaves if index in self.positions else changed) for index in range(self.size)]
