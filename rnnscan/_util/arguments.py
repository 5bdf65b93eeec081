"""Checks of arguments that cells, nets and `scan` share: PRNG keys and one step's input."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import describe_value


def check_key(function: str, key: Any) -> None:
    """Check that a value is one PRNG key.

    Raises:
        TypeError: if it is not.
    """
    is_typed = is_typed_array(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    is_raw = is_typed_array(key) and key.dtype == np.uint32 and len(key.shape) == 1
    if not is_raw and not (is_typed and key.shape == ()):
        raise TypeError(
            f"{function}: `key` must be a PRNG key; got {describe_value(key)}. Write jax.random.key("
            f"{key if isinstance(key, int) and not isinstance(key, bool) else 0})."
        )


def check_step_input(function: str, x: Any) -> None:
    """Check that a value is the type of one step's input: an array, or a `jax.ShapeDtypeStruct`.

    Raises:
        TypeError: if it is not.
    """
    if not is_typed_array(x) or len(x.shape) == 0:
        raise TypeError(
            f"{function}: `initial_carry` takes one step's input (N, D), an array or a jax.ShapeDtypeStruct, of which "
            f"only the type matters; got {describe_value(x)}. Write cell.initial_carry(xs[0])."
        )


def is_typed_array(leaf: Any) -> bool:
    """Whether a value has a shape, and a dtype that JAX knows: tensors of other libraries have another."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return False
    try:
        return isinstance(leaf.dtype, np.dtype) or jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    except TypeError:
        return False
