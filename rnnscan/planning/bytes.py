"""Counts of bytes: of what a backward pass keeps, and of what a compiled function needs beside its arguments."""

from collections.abc import Callable
from typing import Any

import jax


def kept_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Bytes that stay in memory between the forward and the backward pass of a function.

    They are counted on the residuals that `jax.vjp` would hold, without computing anything. Arguments that the
    backward pass reads, such as inputs and parameters, are residuals too and counted.

    Args:
        function: a function of arrays that can be differentiated with respect to all of its arguments.
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
    """Bytes that a compiled function needs beside arguments and results, by XLA's memory analysis.

    Args:
        compiled: `jax.jit(function).lower(...).compile()`.

    Returns:
        The number of bytes, or None where the backend has no such analysis.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan.insight import temporary_bytes
        >>> temporary_bytes(jax.jit(jnp.sin).lower(jnp.ones(8)).compile())
        0
    """
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)
