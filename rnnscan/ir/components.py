"""The strongly connected components of a step: groups of carry leaves that feed each other.

Sets of leaves and of groups are the bits of an int, so that the work grows with the equations, and hardly with the
leaves: a net with the states of 20 batch norms in its carry has 40.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_

from rnnscan.ir.program import Atom, Equation, Value


class Components:
    """Groups of carry leaves that depend on each other, over any number of steps.

    Args:
        equations: one step, in order.
        carry: its carry.
        new_carry: its new carry.

    Attributes:
        members: the groups, as positions in `carry`.
        reaches: for each leaf the new leaves that depend on it in the same step, as bits.
        reached_from: for each new leaf the leaves that it depends on, as bits.
    """

    def __init__(self, equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom]) -> None:
        leaves = [1 << position for position in range(len(carry))]
        self._equations = equations
        # Bit i of depends[v] is set where v depends on leaf i in the same step, bit j of feeds[v] where the new leaf j
        # depends on v.
        self._depends = _depends(equations, zip(carry, leaves, strict=True))
        self._feeds = _feeds(equations, zip(new_carry, leaves, strict=True))
        self.reaches = [self._feeds.get(leaf, 0) for leaf in carry]
        self.reached_from = [self._depends.get(atom, 0) for atom in new_carry]
        self.members = _strongly_connected(self.reaches, self.reached_from)
        # A group is known by the bit of its first leaf. Of most groups it is the only one.
        self._larger = [(sum(1 << leaf for leaf in group), 1 << group[0]) for group in self.members if len(group) > 1]

    def loops(self) -> set[Equation]:
        """The equations that lie between two leaves of a group, so that they depend on the step before."""
        return {equation for equations in self.by_group() for equation in equations}

    def by_group(self) -> list[list[Equation]]:
        """For each group of `members` the equations that lie between two of its leaves, in order."""
        lists: dict[int, list[Equation]] = {group[0]: [] for group in self.members}
        for equation in self._equations:
            groups = union([self.feeding(output) & self.fed(output) for output in equation.outputs])
            for first in positions(groups):
                lists[first].append(equation)
        return [*lists.values()]

    def feeds_leaf(self, equation: Equation, leaf: int) -> bool:
        """Whether a leaf of the new carry depends on an equation."""
        return any(self._feeds.get(output, 0) >> leaf & 1 for output in equation.outputs)

    def is_between(self, equation: Equation, leaf: int) -> bool:
        """Whether an equation lies between a leaf and the same leaf of the new carry."""
        return bool(self._around(equation) >> leaf & 1)

    def between(self) -> Iterator[tuple[Equation, int]]:
        """Equations that lie between a leaf and the same leaf of the new carry, and these leaves, as bits."""
        for equation in self._equations:
            if bits := self._around(equation):
                yield equation, bits

    def feeding(self, value: Value) -> int:
        """The groups that a value depends on in the same step, as the bits of their first leaves."""
        return self._groups(self._depends.get(value, 0))

    def fed(self, value: Value) -> int:
        """The groups that depend on a value in the same step, as the bits of their first leaves."""
        return self._groups(self._feeds.get(value, 0))

    def _groups(self, leaves: int) -> int:
        """The groups of some leaves."""
        for group, first in self._larger:
            if leaves & group:
                leaves = leaves & ~group | first
        return leaves

    def _around(self, equation: Equation) -> int:
        """The leaves that a result of an equation depends on, and the new ones of which depend on it."""
        return union([self._depends.get(output, 0) & self._feeds.get(output, 0) for output in equation.outputs])


def union(sets: Iterable[int]) -> int:
    """The union of sets that are the bits of an int each."""
    return reduce(or_, sets, 0)


def _depends(equations: Iterable[Equation], inputs: Iterable[tuple[Atom, int]]) -> dict[Atom, int]:
    """The bits of the inputs that each value depends on."""
    depends = dict(inputs)
    for equation in equations:
        bits = union([depends.get(value, 0) for value in equation.reads])
        if bits:
            depends.update(dict.fromkeys(equation.outputs, bits))
    return depends


def _feeds(equations: Sequence[Equation], outputs: Iterable[tuple[Atom, int]]) -> dict[Atom, int]:
    """The bits of the outputs that depend on each value."""
    feeds: dict[Atom, int] = {}
    for atom, output_bits in outputs:
        feeds[atom] = feeds.get(atom, 0) | output_bits
    for equation in reversed(equations):
        bits = union([feeds.get(output, 0) for output in equation.outputs])
        if bits:
            for value in equation.reads:
                feeds[value] = feeds.get(value, 0) | bits
    return feeds


def _strongly_connected(reaches: Sequence[int], reached_from: Sequence[int]) -> list[tuple[int, ...]]:
    """The strongly connected components of a graph, by their first members: what reaches a node, and it reaches.

    Args:
        reaches: for each node those at the ends of its edges, as bits.
        reached_from: for each node those whose edges end there.
    """
    groups, left = list[tuple[int, ...]](), (1 << len(reaches)) - 1
    for node in range(len(reaches)):
        if left >> node & 1:
            group = reachable(node, reaches, reachable(node, reached_from, left))
            groups.append(tuple(positions(group)))
            left &= ~group
    return groups


def reachable(root: int, edges: Sequence[int], within: int) -> int:
    """A node and those that edges lead to from it, among some nodes, as bits."""
    found = ahead = 1 << root
    while ahead:
        ahead = union([edges[node] for node in positions(ahead)]) & within & ~found
        found |= ahead
    return found


def positions(bits: int) -> Iterator[int]:
    """The positions of the bits that are set, in order."""
    while bits:
        first = bits & -bits
        yield first.bit_length() - 1
        bits ^= first
