"""The diagonal of the Jacobian of a loop whose elements mix, for quasi-Newton iterations.

Operations that mix elements count for the derivative as if they did not: a product with a matrix as the product with
the diagonal of each of its square blocks, and any other as a constant. Values are not changed.

Source: quasi-DEER, Gonzalez et al. 2024, "Towards Scalable and Stable Parallelization of Nonlinear RNNs".
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax

from rnnscan._util.ranks import over_rows
from rnnscan.engine.analysis.elementwise import MixesError, Places
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.program import Equation, Value


# Operands -> results, with the derivative of elements alone.
Rule: TypeAlias = Callable[[Equation, Sequence[Any]], list[Any]]


def diagonal_rules(equations: Sequence[Equation], leaves: Sequence[Value]) -> dict[Equation, Rule]:
    """The equations that mix elements of the leaves, and how they run for the derivative."""
    places, rules = Places(leaves), dict[Equation, Rule]()
    for equation in equations:
        try:
            places.follow([equation])
        except MixesError:
            side = _matrix_side(equation, places)
            if side is None:
                rules[equation] = _constant
            else:
                rules[equation] = _blocks_rule(side, places.sizes[-1])
                rank = len(equation.outputs[0].shape)
                places.of[equation.outputs[0]] = (*places.of[equation.inputs[1 - side]][:-1], rank - 1)
    return rules


def _matrix_side(equation: Equation, places: Places) -> int | None:
    """Which operand of a product is a matrix of square blocks, that multiplies the last axis of the leaves."""
    contraction = contraction_of(equation)
    if contraction is None or not places.leaf:
        return None
    depends = [atom in places.of for atom in equation.inputs]
    side = 1 if depends == [True, False] else 0 if depends == [False, True] else None
    if side is None or contraction.batch[0] or len(equation.inputs[side].shape) != 2:
        return None
    operand = equation.inputs[1 - side]
    last, size = len(operand.shape) - 1, places.sizes[-1]
    whole = all(length % size == 0 for length in equation.inputs[side].shape)
    # With the matrix in front, its columns would be the first axis of the result.
    ordered = side == 1 or last == 0
    fits = contraction.contracted[1 - side] == (last,) and places.of[operand][-1:] == (last,)
    return side if whole and ordered and fits else None


def _blocks_rule(side: int, size: int) -> Rule:
    def run(equation: Equation, operands: Sequence[Any]) -> list[Any]:
        (contracted, _), matrix, vector = equation.params["dimension_numbers"], operands[side], operands[1 - side]
        matrix = matrix if contracted[side] == (0,) else matrix.T
        blocks = matrix.reshape(matrix.shape[0] // size, size, matrix.shape[1] // size, size)
        diagonals = jnp.diagonal(blocks, axis1=1, axis2=3)  # (rows, columns, size)
        parts = vector.reshape(*vector.shape[:-1], matrix.shape[0] // size, size)
        alone = sum(parts[..., row, None, :] * over_rows(diagonals[row], parts) for row in range(diagonals.shape[0]))
        (result,) = equation.evaluate(*operands)
        alone = jnp.reshape(alone, result.shape).astype(result.dtype)
        return [lax.stop_gradient(result) + (alone - lax.stop_gradient(alone))]

    return run


def _constant(equation: Equation, operands: Sequence[Any]) -> list[Any]:
    return [lax.stop_gradient(result) for result in equation.evaluate(*operands)]
