"""How the parameters of gated cells start. An initializer is `(key, shape, dtype) -> array`, as in `jax.nn`."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


Initializer: TypeAlias = Callable[..., Array]

lecun_normal: Initializer = jax.nn.initializers.lecun_normal()
zeros: Initializer = jax.nn.initializers.zeros


def orthogonal(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, "..."]:
    """A random orthogonal matrix, in any floating dtype.

    Args:
        key: a PRNG key.
        shape: `(rows, columns)`.
        dtype: of the result. The decomposition runs in at least float32, because there is none in bfloat16.

    Returns:
        A matrix with orthonormal rows or columns, whichever are fewer.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells import initializers
        >>> matrix = initializers.orthogonal(jax.random.key(0), (4, 4))
        >>> bool(jnp.allclose(matrix @ matrix.T, jnp.eye(4), atol=1e-5))
        True

    Source: Saxe et al. 2013, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks".
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    return jax.nn.initializers.orthogonal()(key, shape, wide).astype(dtype)


def by_gate(initializer: Initializer, key: Array, rows: int, units: int, gates: int, dtype: Any) -> Array:
    """Initialize each gate's block of a fused kernel `(rows, gates * units)` by itself.

    Fusing the gates then changes neither a fan-out nor what is orthogonal to what.
    """
    keys = jax.random.split(key, gates)
    return jnp.concatenate([initializer(gate_key, (rows, units), dtype) for gate_key in keys], axis=1)
