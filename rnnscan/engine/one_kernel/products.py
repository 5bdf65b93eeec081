"""Products of small matrices, as multiplications and sums."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import at_least_float32
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.program import Equation


def product(equation: Equation, left: Any, right: Any) -> list[Any]:
    """A `dot_general`: the sum over k of `left[b, m, k] * right[b, n, k]`, with the axes of the equation.

    Floats are added up in at least float32, as XLA adds them up.
    """
    contraction, dtype = contraction_of(equation), equation.outputs[0].dtype
    assert contraction is not None
    shape = equation.outputs[0].shape
    contracted = [left.shape[axis] for axis in contraction.contracted[0]]
    wide = at_least_float32(dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype
    factors = []
    for side, operand in enumerate((left, right)):
        summed = {axis: len(shape) + place for place, axis in enumerate(contraction.contracted[side])}
        factors.append(_spread(operand.astype(wide), contraction.in_result(side) | summed, (*shape, *contracted)))
    total = lax.reduce_sum(lax.mul(*factors), range(len(shape), len(shape) + len(contracted)))
    return [total.astype(dtype)]


def _spread(operand: Any, places: Mapping[int, int], shape: Any) -> Any:
    """An operand whose axes go to places in a larger shape, and which is repeated along the others."""
    order = sorted(range(operand.ndim), key=places.__getitem__)
    return lax.broadcast_in_dim(lax.transpose(operand, order), shape, [places[axis] for axis in order])
