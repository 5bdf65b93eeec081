"""The strongly connected components of a step: groups of carry leaves that feed each other.

Source: Warshall 1962, "A Theorem on Boolean Matrices", for the transitive closure.
"""

from collections.abc import Sequence

from rnnscan.engine.fission.program import Atom, Equation, Value, values_of


class Components:
    """Groups of carry leaves that depend on each other, over any number of steps.

    Args:
        equations: one step, in order.
        carry: its carry.
        new_carry: its new carry.

    Attributes:
        members: the groups, as positions in `carry`.
    """

    def __init__(self, equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom]) -> None:
        # Sets of positions as the bits of an int: bit i of depends[v] is set where v depends on carry[i] in the same
        # step, bit j of feeds[v] where new_carry[j] depends on v.
        self._depends = {leaf: 1 << position for position, leaf in enumerate(carry)}
        for equation in equations:
            bits = 0
            for value in equation.reads:
                bits |= self._depends.get(value, 0)
            self._depends.update(dict.fromkeys(equation.outputs, bits))
        self._feeds: dict[Value, int] = {}
        for position, atom in enumerate(new_carry):
            for value in values_of([atom]):
                self._feeds[value] = self._feeds.get(value, 0) | 1 << position
        for equation in reversed(equations):
            bits = 0
            for output in equation.outputs:
                bits |= self._feeds.get(output, 0)
            for value in equation.reads:
                self._feeds[value] = self._feeds.get(value, 0) | bits
        self.members = self._strongly_connected([self._feeds.get(leaf, 0) for leaf in carry])

    def loops(self, equations: Sequence[Equation]) -> list[Equation]:
        """The equations that lie between two leaves of a group."""
        return [equation for equation in equations if any(self.has(members, equation) for members in self.members)]

    def has(self, members: Sequence[int], equation: Equation) -> bool:
        """Whether an equation lies between two leaves of a group, so that it depends on the step before."""
        group = sum(1 << position for position in members)
        return any(
            self._depends.get(output, 0) & group and self._feeds.get(output, 0) & group for output in equation.outputs
        )

    def feeding(self, value: Value) -> frozenset[tuple[int, ...]]:
        """The groups that a value depends on in the same step."""
        return self._groups(self._depends.get(value, 0))

    def fed(self, value: Value) -> frozenset[tuple[int, ...]]:
        """The groups that depend on a value in the same step."""
        return self._groups(self._feeds.get(value, 0))

    def _groups(self, bits: int) -> frozenset[tuple[int, ...]]:
        return frozenset(group for group in self.members if any(bits >> position & 1 for position in group))

    @staticmethod
    def _strongly_connected(reaches: list[int]) -> list[tuple[int, ...]]:
        for middle in range(len(reaches)):
            for first in range(len(reaches)):
                if reaches[first] >> middle & 1:
                    reaches[first] |= reaches[middle]
        groups: dict[int, tuple[int, ...]] = {}
        for first in range(len(reaches)):
            mutual = tuple(
                other
                for other in range(len(reaches))
                if other == first or (reaches[first] >> other & 1 and reaches[other] >> first & 1)
            )
            groups[mutual[0]] = mutual
        return list(groups.values())
