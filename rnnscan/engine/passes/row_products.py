"""Products `x @ w` of rows with a matrix that is the same at every step."""

from collections.abc import Collection

from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.program import Equation, Value


def is_rows_by_matrix(equation: Equation, fixed: Collection[Value]) -> bool:
    """Whether it is `x @ w`, with a varying x and a fixed matrix."""
    contraction = contraction_of(equation)
    if contraction is None:
        return False
    x, weight = equation.inputs
    last_by_first = contraction.contracted == ((len(x.shape) - 1,), (0,)) and not contraction.batch[0]
    return isinstance(x, Value) and x not in fixed and weight in fixed and len(weight.shape) == 2 and last_by_first
