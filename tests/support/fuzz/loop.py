"""What rnnscan.scan means for any cell, as a loop over steps: slow, and plainly right."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def loop(
    cell: Callable[[Any, Any, Any, Any], tuple[Any, Any]],
    params: Any,
    closed: Any,
    carry: Any,
    xs: Any,
    *,
    length: int,
    batch: int,
    seq_lengths: Any = None,
    mask: Any = None,
    padding: str = "zero",
    reset: Any = None,
    reset_to: Any = None,
    truncate: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """All rows go through the cell at each step, because a cell may mix them; a row that is padding is put back.

    The cell is `(params, closed, carry, x) -> (carry, y)`; the options are those of `rnnscan.scan`, concrete.
    """
    valid = np.ones((length, batch), bool)
    if seq_lengths is not None:
        valid = np.arange(length)[:, None] < np.asarray(seq_lengths)
    if mask is not None:
        valid = np.asarray(mask)
    has_rows = seq_lengths is not None or mask is not None
    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)
    y_types = jax.eval_shape(cell, params, closed, carry, first)[1]
    no_y = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), y_types)
    last_y, ys = no_y, [no_y] * length
    for count, t in enumerate(reversed(range(length)) if reverse else range(length)):
        if truncate is not None and count > 0 and count % truncate == 0:
            carry = jax.lax.stop_gradient(carry)
        # A reset at a padded step is none, also for a cell that mixes rows.
        begin = carry if reset is None else _rows(np.asarray(reset)[t] & valid[t], reset_to, carry)
        x = jax.tree.map(lambda leaf, t=t: leaf[t], xs)
        if has_rows:
            x = jax.tree.map(lambda leaf, t=t: _without_padding(leaf, valid[t]), x)
        new_carry, ys[t] = cell(params, closed, begin, x)
        if has_rows:
            carry = _rows(valid[t], new_carry, jax.tree.map(jnp.zeros_like, carry) if padding == "drop" else carry)
            last_y = _rows(valid[t], ys[t], last_y)
            ys[t] = last_y if padding == "hold" else _rows(valid[t], ys[t], no_y)
        else:
            carry = new_carry
    # Without steps there is nothing to stack.
    stack = lambda type_, *leaves: jnp.stack(leaves) if leaves else jnp.zeros((0, *type_.shape), type_.dtype)  # noqa: E731
    return jax.tree.map(jnp.asarray, carry), jax.tree.map(stack, y_types, *ys)


def _rows(condition: np.ndarray, on_true: Any, on_false: Any) -> Any:
    """Each row from one of two."""
    return jax.tree.map(
        lambda true_leaf, false_leaf: jnp.stack(
            [(true_leaf if is_true else false_leaf)[row] for row, is_true in enumerate(condition)]
        ),
        on_true,
        on_false,
    )


def _without_padding(leaf: Any, valid: np.ndarray) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    if leaf.ndim == 0:
        return leaf if valid.any() else jnp.zeros_like(leaf)
    return _rows(valid, leaf, jnp.zeros_like(leaf))
