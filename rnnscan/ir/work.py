"""The work of a product, from its shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from rnnscan.ir.program import nominal_size


Shape = Sequence[Any]


def flops_of_product(name: str, operands: Sequence[Shape], result: Shape, params: Mapping[str, Any]) -> int:
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
