"""Promotion of dtypes by the library, which is the same under `jax.numpy_dtype_promotion("strict")`."""

from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import is_weak


def promoted(*operands: Any) -> Any:
    """The dtype that arrays, or dtypes, promote to."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*operands)


def at_least_float32(dtype: Any) -> Any:
    """The dtype to add up values of a dtype in: float32, or what that promotes to."""
    return promoted(jnp.dtype(dtype), jnp.dtype(jnp.float32))


def resolve_weak_type(leaf: Any, new_leaf: Any) -> Any:
    """A weakly typed leaf in the dtype that the step returns, if it promotes to that; another one as it is."""
    same = new_leaf.dtype == leaf.dtype and new_leaf.weak_type
    if not is_weak(leaf) or same:
        return leaf
    return leaf.astype(new_leaf.dtype) if promoted(leaf, new_leaf.dtype) == new_leaf.dtype else leaf
