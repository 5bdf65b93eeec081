"""Axes followed through equations: which axes of values are one axis, such as that of the rows of a batch."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.program import Atom, Equation, Value
from rnnscan.ir.traits import Kind


Axis: TypeAlias = tuple[Value, int]

# Their results have the axes of their operands, where the sizes are equal.
_IN_PLACE = frozenset(
    {Kind.ELEMENTWISE, Kind.SAME, Kind.PLACE, Kind.PART, Kind.JOIN, Kind.CUMULATIVE, Kind.SORT, Kind.WRITE}
)


class SameAxes:
    """Groups of axes that equations put in step: an index along one is an index along the others.

    Elements may move along an axis, or be combined along it. An equation of another kind puts no axes in step.

    Args:
        equations: the equations.
    """

    def __init__(self, equations: Iterable[Equation]) -> None:
        self._first: dict[Axis, Axis] = {}
        for equation in equations:
            for axis, same_axis in axes_in_step(equation):
                self.join(axis, same_axis)

    def join(self, axis: Axis, same_axis: Axis) -> None:
        """Put two axes in one group."""
        first, second = self.group(axis), self.group(same_axis)
        if first != second:
            self._first[first] = second

    def group(self, axis: Axis) -> Axis:
        """An axis that is the same for all axes of a group."""
        first = axis
        while first in self._first:
            first = self._first[first]
        while axis != first:  # Later searches are short, so that the work grows with the equations.
            self._first[axis], axis = first, self._first[axis]
        return first


def axes_in_step(equation: Equation) -> Iterator[tuple[Axis, Axis]]:
    """Pairs of axes of operands and results that an equation puts in step."""
    kind, params = equation.kind, equation.params
    contraction = contraction_of(equation)
    operand = equation.inputs[0] if equation.inputs else None
    if contraction is not None:
        (result,), sides = equation.outputs, equation.inputs
        yield from _pairs((sides[0], sides[1], pair) for pair in zip(*contraction.contracted, strict=True))
        for side, atom in enumerate(sides):
            yield from _pairs((atom, result, pair) for pair in contraction.in_result(side).items())
    elif kind in _IN_PLACE or equation.name in ("rev", "tile"):
        for atom in equation.inputs:
            for result in equation.outputs:
                same_rank = len(atom.shape) == len(result.shape)
                yield from _pairs((atom, result, (axis, axis)) for axis in range(len(result.shape)) if same_rank)
    elif operand is None or not equation.outputs:
        return
    elif kind is Kind.REDUCE or equation.name == "squeeze":
        gone = params["axes"] if kind is Kind.REDUCE else params["dimensions"]
        kept = [axis for axis in range(len(operand.shape)) if axis not in gone]
        yield from _pairs((operand, equation.outputs[0], (axis, place)) for place, axis in enumerate(kept))
    elif equation.name == "broadcast_in_dim":
        yield from _pairs((operand, equation.outputs[0], pair) for pair in enumerate(params["broadcast_dimensions"]))
    elif equation.name == "transpose":
        places = enumerate(params["permutation"])
        yield from _pairs((operand, equation.outputs[0], (axis, place)) for place, axis in places)
    elif equation.name == "reshape":
        yield from _pairs(
            (operand, equation.outputs[0], (axis, axis)) for axis in _leading(operand, equation.outputs[0])
        )


def _leading(operand: Atom, result: Atom) -> Iterator[int]:
    """The axes before the first one that a reshape changes."""
    for axis, (before, after) in enumerate(zip(operand.shape, result.shape, strict=False)):
        if before != after:
            return
        yield axis


def _pairs(pairs: Iterable[tuple[Atom, Atom, Any]]) -> Iterator[tuple[Axis, Axis]]:
    """The pairs of axes of values of one size; constants have none."""
    for atom, partner, (axis, partner_axis) in pairs:
        if isinstance(atom, Value) and isinstance(partner, Value) and atom.shape[axis] == partner.shape[partner_axis]:
            yield (atom, axis), (partner, partner_axis)


def other_axes(axes: Iterable[Axis], values: Iterable[Value], same: SameAxes) -> set[Axis]:
    """The groups of the other axes of all values that have one of these axes.

    Args:
        axes: axes that are one, such as that of the rows.
        values: the values to look at.
        same: the groups.
    """
    groups, neighbors = {same.group(axis) for axis in axes}, set[Axis]()
    for value in values:
        value_groups = [same.group((value, axis)) for axis in range(len(value.shape))]
        if not groups.isdisjoint(value_groups):
            neighbors.update(value_groups)
    return neighbors - groups
