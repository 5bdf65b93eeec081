"""Promotion of dtypes by the library, which is the same under `jax.numpy_dtype_promotion("strict")`."""

from typing import Any

import jax
import jax.numpy as jnp


def promoted(*operands: Any) -> Any:
    """The dtype that arrays, or dtypes, promote to."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*operands)


def at_least_float32(dtype: Any) -> Any:
    """The dtype to add up values of a dtype in: float32, or what that promotes to."""
    return promoted(jnp.dtype(dtype), jnp.dtype(jnp.float32))
