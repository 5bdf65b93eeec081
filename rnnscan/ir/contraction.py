"""The axes of a product `dot_general`, and the work of a product."""

from dataclasses import dataclass
from typing import TypeAlias

from rnnscan.ir.program import Equation, nominal_size


_Axes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Contraction:
    """Which axes of its two operands a product sums over, and where the others are in its result.

    Attributes:
        contracted: for each operand the axes that are summed over, in pairs.
        batch: for each operand the axes that are in step, in pairs; the first ones of the result.
        free: for each operand its other axes, which the result has in this order.
    """

    contracted: tuple[_Axes, _Axes]
    batch: tuple[_Axes, _Axes]
    free: tuple[_Axes, _Axes]

    def in_result(self, side: int) -> dict[int, int]:
        """Axis of an operand -> axis of the result, for all axes that are not summed over."""
        before = len(self.batch[0]) + (0 if side == 0 else len(self.free[0]))
        places = {axis: place for place, axis in enumerate(self.batch[side])}
        return places | {axis: before + place for place, axis in enumerate(self.free[side])}


def contraction_of(equation: Equation | None) -> Contraction | None:
    """The axes of a `dot_general`; None for other equations, and for none."""
    if equation is None or equation.name != "dot_general":
        return None
    contracted, batch = ((tuple(left), tuple(right)) for left, right in equation.params["dimension_numbers"])
    left, right = (
        tuple(axis for axis in range(len(atom.shape)) if axis not in (*contracted[side], *batch[side]))
        for side, atom in enumerate(equation.inputs)
    )
    return Contraction(contracted, batch, (left, right))


def operations_of(equation: Equation) -> int:
    """The additions and multiplications of a product: a `dot_general` or a convolution."""
    contraction, (left, right) = contraction_of(equation), (atom.shape for atom in equation.inputs)
    if contraction is not None:
        summed = nominal_size(left[axis] for axis in contraction.contracted[0])
    else:
        summed = nominal_size(right) // nominal_size([right[equation.params["dimension_numbers"].rhs_spec[0]]])
    return 2 * nominal_size(equation.outputs[0].shape) * summed
