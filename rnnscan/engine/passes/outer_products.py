"""Outer products as multiplications."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan.ir.contraction import Contraction, contraction_of
from rnnscan.ir.program import Equation, Program, Value
from rnnscan.ir.rewrite import replace_equations
from rnnscan.ir.trace import in_place_of


def outer_products(program: Program) -> Program:
    """Compute a product that adds nothing up as a multiplication of broadcast operands.

    `k[:, :, None] @ v[:, None, :]` contracts an axis of size 1, and `einsum("nk,nv->nkv", k, v)` none. A product with
    an operand that is the same at every step stays, because its gradient is one product over all steps.
    """
    return replace_equations(program, partial(_multiplication, fixed=program.fixed))


def _multiplication(equation: Equation, fixed: set[Value]) -> Sequence[Equation] | None:
    contraction = contraction_of(equation)
    if contraction is None or equation.params["out_sharding"] is not None:
        return None
    varies = all(isinstance(operand, Value) and operand not in fixed for operand in equation.inputs)
    if not varies or any(equation.inputs[0].shape[axis] != 1 for axis in contraction.contracted[0]):
        return None
    (result,) = equation.outputs
    wide = max((atom.dtype for atom in (result, *equation.inputs)), key=lambda dtype: dtype.itemsize)

    def multiply(left: Any, right: Any) -> Any:
        placed = (_placed(operand, contraction, side, result.shape) for side, operand in enumerate((left, right)))
        combine = lax.bitwise_and if jnp.issubdtype(wide, jnp.bool_) else lax.mul
        product = combine(*(lax.convert_element_type(operand, wide) for operand in placed))
        return lax.convert_element_type(product, result.dtype)

    return in_place_of(equation, multiply, equation.inputs)


def _placed(operand: Any, contraction: Contraction, side: int, shape: Any) -> Any:
    """An operand in the shape of the product."""
    places, contracted = contraction.in_result(side), contraction.contracted[side]
    ordered = lax.squeeze(lax.transpose(operand, (*places, *contracted)), range(len(places), operand.ndim))
    return lax.broadcast_in_dim(ordered, shape, [*places.values()])
