"""Block-diagonal kernels, with one block per head."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rnnscan._util.dtypes import at_least_float32
from rnnscan.cells import checks, initializers
from rnnscan.cells.initializers import Initializer


def check_heads(cell: str, hidden_size: int, heads: Any) -> None:
    """Check that the number of heads divides the number of units."""
    checks.check_size(cell, "heads", heads)
    if hidden_size % heads:
        raise ValueError(f"{cell}: `heads` must divide `hidden_size`, {hidden_size}; got {heads}.")


def initialize_heads(
    initializer: Initializer, key: Array, units: int, heads: int, blocks: int, dtype: Any
) -> Float[Array, "heads rows columns"]:
    """Make a block-diagonal kernel: for each head, blocks `(units / heads, units / heads)` side by side."""
    head = units // heads
    keys = jax.random.split(key, heads)
    return jnp.stack([initializers.by_block(initializer, head_key, head, head, blocks, dtype) for head_key in keys])


def project_heads(
    x: Float[Array, "*batch units"], kernel: Float[Array, "heads rows blocks_of_rows"]
) -> Float[Array, "*batch columns"]:
    """Compute `x @ kernel` separately for each head, in at least float32.

    Args:
        x: `(..., heads * rows)`, head by head.
        kernel: `(heads, rows, blocks * rows)`.

    Returns:
        `(..., blocks * heads * rows)`, block by block, and head by head within each block. So it splits into blocks
        like a product without heads.
    """
    heads, rows, _ = kernel.shape
    wide = at_least_float32(x.dtype)
    by_head = split_heads(x, heads)
    by_block = kernel.reshape(heads, rows, -1, rows)
    products = jnp.einsum("...hr,hrbc->...bhc", by_head, by_block, preferred_element_type=wide)
    return lax.collapse(products, products.ndim - 3)


def split_heads(x: Array, heads: int) -> Array:
    """Split the last axis into `(heads, ...)`. Its sizes are explicit, because there may be no rows."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
