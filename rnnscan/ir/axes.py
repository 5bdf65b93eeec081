"""Axes followed through equations: which axes of values are one axis, such as that of the rows of a batch."""

from collections.abc import Iterable, Iterator
from itertools import count, product
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
    """Pairs of axes of operands and results that an equation puts in step. Both have one size; constants have none."""
    for (atom, axis), (partner, partner_axis) in _pairs(equation):
        if isinstance(atom, Value) and isinstance(partner, Value) and atom.shape[axis] == partner.shape[partner_axis]:
            yield (atom, axis), (partner, partner_axis)


def _pairs(equation: Equation) -> Iterator[tuple[tuple[Atom, int], tuple[Atom, int]]]:
    """The pairs by the kind of the equation alone, with those of constants and of axes of different sizes."""
    contraction = contraction_of(equation)
    if contraction is not None:
        (left, right), (result,) = equation.inputs, equation.outputs
        yield from (((left, axis), (right, other)) for axis, other in zip(*contraction.contracted, strict=True))
        for side, atom in enumerate(equation.inputs):
            yield from (((atom, axis), (result, place)) for axis, place in contraction.in_result(side).items())
    elif equation.kind in _IN_PLACE or equation.name in ("rev", "tile"):
        for atom, result in product(equation.inputs, equation.outputs):
            if len(atom.shape) == len(result.shape):
                yield from (((atom, axis), (result, axis)) for axis in range(len(result.shape)))
    elif equation.inputs and equation.outputs:
        operand, result = equation.inputs[0], equation.outputs[0]
        yield from (((operand, axis), (result, place)) for axis, place in _moves(equation, operand.shape, result.shape))


def _moves(equation: Equation, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterable[tuple[int, int]]:
    """The axes of the first operand, each with its axis in the first result, from their shapes before and after."""
    params, name = equation.params, equation.name
    if equation.kind is Kind.REDUCE or name == "squeeze":
        gone = params["axes" if equation.kind is Kind.REDUCE else "dimensions"]
        return zip((axis for axis in range(len(before)) if axis not in gone), count())
    if name == "transpose":
        return zip(params["permutation"], count())
    if name == "broadcast_in_dim":
        return enumerate(params["broadcast_dimensions"])
    if name == "reshape":  # The axes before the first one that it changes.
        return ((axis, axis) for axis in range(len(before)) if before[: axis + 1] == after[: axis + 1])
    return ()


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
