"""Count the bytes that a backward pass keeps, and the temporary bytes of a compiled function."""

from collections.abc import Callable
from typing import Any

import jax


def kept_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Count the bytes kept between the forward and the backward pass of a function.

    These are the bytes of the residuals of `jax.vjp`. Arguments that the backward pass reads, such as inputs and
    parameters, count too. Nothing is computed.

    Args:
        function: a function of arrays, differentiable with respect to all of its arguments.
        arguments: its arguments, as arrays or `jax.ShapeDtypeStruct`.

    Returns:
        The number of bytes.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.insight import kept_bytes
        >>> kept_bytes(jnp.sin, jnp.ones(8))  # its cosine: eight float32
        32
    """
    residuals = jax.eval_shape(lambda *arguments: jax.vjp(function, *arguments)[1], *arguments)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))


def temporary_bytes(compiled: Any) -> int | None:
    """The bytes of a compiled function besides arguments and results, by XLA's memory analysis.

    Args:
        compiled: `jax.jit(function).lower(...).compile()`.

    Returns:
        The number of bytes, or None if the backend has no such analysis.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan.insight import temporary_bytes
        >>> temporary_bytes(jax.jit(jnp.sin).lower(jnp.ones(8)).compile())
        0
    """
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)
