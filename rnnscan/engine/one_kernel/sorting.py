"""Sorts of few elements, by their ranks."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan.engine.one_kernel.indexing import sum_where
from rnnscan.ir.program import Equation


def sort(equation: Equation, keys: Any, *others: Any) -> list[Any]:
    """Operands in the order of the first one, along an axis. Equal elements keep their order; NaN is last.

    The rank of an element is the number of those before it.
    """
    axis, keys = equation.params["dimension"], jnp.moveaxis(keys, equation.params["dimension"], -1)
    ranks, place = _ranks(keys), lax.broadcasted_iota(jnp.int32, (*keys.shape, keys.shape[-1]), keys.ndim)
    results = []
    for operand in (keys, *(jnp.moveaxis(other, axis, -1) for other in others)):
        ordered = sum_where(ranks[..., None] == place, operand[..., None], -2)
        results.append(jnp.moveaxis(ordered, -1, axis))
    return results


def _ranks(keys: Any) -> Any:
    mine, other = keys[..., None], keys[..., None, :]
    shape, axis = jnp.broadcast_shapes(mine.shape, other.shape), keys.ndim
    is_earlier = lax.broadcasted_iota(jnp.int32, shape, axis) < lax.broadcasted_iota(jnp.int32, shape, axis - 1)
    is_before = _is_less(other, mine) | (is_earlier & ~_is_less(mine, other))
    return jnp.sum(is_before, -1, dtype=jnp.int32)


def _is_less(left: Any, right: Any) -> Any:
    is_less = left < right
    if not jnp.issubdtype(left.dtype, jnp.inexact):
        return is_less
    return is_less | (jnp.isnan(right) & ~jnp.isnan(left))
