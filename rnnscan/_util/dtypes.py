"""Promotion of dtypes by the library, which is the same under `jax.numpy_dtype_promotion("strict")`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import is_weak


def promoted(*operands: Any) -> Any:
    """The dtype that arrays, or dtypes, promote to.

    JAX promotes floats of 8 bits and fewer to no other dtype. Here they promote as bfloat16 does.
    """
    with jax.numpy_dtype_promotion("standard"):
        dtypes = {jnp.result_type(operand) for operand in operands if _is_dtype(operand) or not is_weak(operand)}
        if len(dtypes) > 1 and any(map(_is_small_float, dtypes)):
            return jnp.result_type(*(jnp.bfloat16 if _is_small_float(dtype) else dtype for dtype in dtypes))
        return jnp.result_type(*operands)


def _is_dtype(operand: Any) -> bool:
    return isinstance(operand, np.dtype | type)


def _is_small_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.finfo(dtype).bits < 16


def at_least_float32(dtype: Any) -> Any:
    """The dtype to add up values of a dtype in: float32, or what that promotes to."""
    return promoted(jnp.dtype(dtype), jnp.dtype(jnp.float32))


def exponents(dtype: Any) -> int:
    """The largest exponent of a floating dtype, which says how far it ranges; 0 for others."""
    return int(jnp.finfo(dtype).maxexp) if jnp.issubdtype(dtype, jnp.floating) else 0


def in_range_of_float32(dtype: Any) -> Any:
    """The dtype, or float32 in place of a float of a smaller range, such as float16."""
    return jnp.dtype(jnp.float32) if 0 < exponents(dtype) < exponents(jnp.float32) else dtype


def resolve_weak_type(leaf: Any, new_leaf: Any) -> Any:
    """A weakly typed leaf in the dtype that the step returns, if it promotes to that; another one as it is."""
    same = new_leaf.dtype == leaf.dtype and new_leaf.weak_type
    if not is_weak(leaf) or same:
        return leaf
    return leaf.astype(new_leaf.dtype) if promoted(leaf, new_leaf.dtype) == new_leaf.dtype else leaf
