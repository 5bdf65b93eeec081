"""Outer products as multiplications."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import jax
from jax import lax

from rnnscan.ir.dataflow import determined
from rnnscan.ir.program import Equation, Program, Value
from rnnscan.ir.trace import Inliner


def outer_products(program: Program) -> Program:
    """Compute a product that adds nothing up as a multiplication of broadcast operands.

    `k[:, :, None] @ v[:, None, :]` contracts an axis of size 1, and `einsum("nk,nv->nkv", k, v)` none. A product with
    an operand that is the same at every step stays, because its gradient is one product over all steps.
    """
    fixed = determined(program.equations, program.invariant)
    equations = chain.from_iterable(
        _multiplication(equation) if _is_outer(equation, fixed) else [equation] for equation in program.equations
    )
    return replace(program, equations=tuple(equations))


def _is_outer(equation: Equation, fixed: set[Value]) -> bool:
    if equation.name != "dot_general" or equation.params["out_sharding"] is not None:
        return False
    (contracted, _), _ = equation.params["dimension_numbers"]
    varies = all(isinstance(operand, Value) and operand not in fixed for operand in equation.inputs)
    return varies and all(equation.inputs[0].shape[axis] == 1 for axis in contracted)


def _multiplication(equation: Equation) -> Sequence[Equation]:
    contracted, batch = equation.params["dimension_numbers"]
    (result,) = equation.outputs
    wide = max((atom.dtype for atom in (result, *equation.inputs)), key=lambda dtype: dtype.itemsize)

    def multiply(left: Any, right: Any) -> Any:
        first_of_right = left.ndim - len(contracted[0])
        left = _placed(left, contracted[0], batch[0], len(batch[0]), result.shape)
        right = _placed(right, contracted[1], batch[1], first_of_right, result.shape)
        product = lax.mul(*(lax.convert_element_type(operand, wide) for operand in (left, right)))
        return lax.convert_element_type(product, result.dtype)

    inliner = Inliner()
    inliner.inline(jax.make_jaxpr(multiply)(*(atom.aval for atom in equation.inputs)).jaxpr, [], equation.inputs)
    equations = [replace(own, scope=equation.scope) for own in inliner.equations]
    return [*equations[:-1], replace(equations[-1], outputs=(result,))]


def _placed(operand: Any, contracted: Sequence[int], batch: Sequence[int], first: int, shape: Any) -> Any:
    """An operand in the shape of the product: the batch axes first, and its free axes from `first` on."""
    free = [axis for axis in range(operand.ndim) if axis not in (*contracted, *batch)]
    ordered = lax.squeeze(
        lax.transpose(operand, (*batch, *free, *contracted)), range(len(batch) + len(free), operand.ndim)
    )
    return lax.broadcast_in_dim(ordered, shape, [*range(len(batch)), *range(first, first + len(free))])
