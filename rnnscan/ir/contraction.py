"""The axes of a product `dot_general`, and the work of a product."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

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


def flops_of_product(
    name: str, operands: Sequence[Sequence[Any]], result: Sequence[Any], params: Mapping[str, Any]
) -> int:
    """The additions and multiplications of a product.

    Args:
        name: `dot_general` or `conv_general_dilated`.
        operands: the shapes of its operands.
        result: the shape of its result.
        params: its parameters.
    """
    numbers = params["dimension_numbers"]
    if name == "dot_general":
        (contracted, _), _ = numbers
        return 2 * nominal_size(result) * nominal_size(operands[0][axis] for axis in contracted)
    kernel = operands[1]
    return 2 * nominal_size(result) * nominal_size(kernel) // nominal_size([kernel[numbers.rhs_spec[0]]])
