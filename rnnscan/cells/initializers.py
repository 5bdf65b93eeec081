"""Initializers `(key, shape, dtype) -> array`, as in `jax.nn.initializers`."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan._util.dtypes import at_least_float32


Initializer: TypeAlias = Callable[..., Array]

zeros: Initializer = jax.nn.initializers.zeros


def _compiled(initializer: Initializer) -> Initializer:
    """One program to compile for each shape, and not one for each operation: an LSTM's had 29, and now 19."""
    return jax.jit(initializer, static_argnums=(1, 2))


# The functions below call them, because a compiled function cannot be pickled.
_lecun_normal = _compiled(jax.nn.initializers.lecun_normal())
_xavier_uniform = _compiled(jax.nn.initializers.xavier_uniform())


def lecun_normal(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, "..."]:
    """A truncated normal distribution with variance `1 / rows`: `jax.nn.initializers.lecun_normal()`.

    JAX makes a new function at each call. This one is a module function, so that cells can be pickled and compared.

    Args:
        key: a PRNG key.
        shape: `(rows, columns)`.
        dtype: the dtype of the result.

    Returns:
        The matrix.

    Source: LeCun et al. 1998, "Efficient BackProp", section 4.6.
    """
    return _lecun_normal(key, tuple(shape), dtype)


def xavier_uniform(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, "..."]:
    """A uniform distribution with variance `2 / (rows + columns)`: `jax.nn.initializers.xavier_uniform()`.

    Args:
        key: a PRNG key.
        shape: `(rows, columns)`.
        dtype: the dtype of the result.

    Returns:
        The matrix.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks",
    equation 16.
    """
    return _xavier_uniform(key, tuple(shape), dtype)


def orthogonal(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, "..."]:
    """A random orthogonal matrix, in any floating dtype.

    Args:
        key: a PRNG key.
        shape: `(rows, columns)`.
        dtype: the dtype of the result. The decomposition runs in at least float32, because bfloat16 has none.

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
    return _orthogonal(key, tuple(shape), dtype)


@_compiled
def _orthogonal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    wide = at_least_float32(dtype)
    return jax.nn.initializers.orthogonal()(key, shape, wide).astype(dtype)


def by_block(initializer: Initializer, key: Array, rows: int, units: int, blocks: int, dtype: Any) -> Array:
    """Initialize each block `(rows, units)` of a fused kernel `(rows, blocks * units)` separately.

    Fan-out and orthogonality then hold for each block, as without fusion.
    """
    keys = jax.random.split(key, blocks)
    return jnp.concatenate([initializer(block_key, (rows, units), dtype) for block_key in keys], axis=1)
