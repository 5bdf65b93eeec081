"""Initial carries without the batch axis: rows share a leaf `(H,)` in place of `(N, H)`.

The cell's `initial_carry`, or the carry that a step returns, shows whether a leaf lacks the batch axis. An ambiguous
leaf, such as `(N,)` that comes out as `(N, N)`, is not shared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import is_key
from rnnscan._util.refs import is_ref
from rnnscan._util.step_wrappers import one_step, repeat_over


@dataclass(frozen=True)
class Rows:
    """The batch axis.

    Attributes:
        size: N.
        source: an array `(T, N, ...)`.
    """

    size: Any
    source: Any

    @staticmethod
    def of(xs: Any, *by_row: Any) -> "Rows | None":
        """The rows of masks `(T, N)`, or else of the inputs; None if there are none, or they disagree."""
        inputs = [leaf for leaf in jax.tree.leaves(xs) if leaf.ndim > 1 and not is_ref(leaf)]
        masks = [mask for mask in by_row if mask is not None and mask.ndim > 1]
        sizes = {leaf.shape[1] for leaf in masks or inputs}
        if len(sizes) != 1:
            return None
        (size,) = sizes
        # Inputs first: under `shard_map`, a carry must vary over the same axes as they do.
        fitting = [leaf for leaf in (*inputs, *masks) if leaf.shape[1] == size and not is_key(leaf)]
        return Rows(size, fitting[0]) if fitting else None

    def repeat(self, leaf: Any) -> Any:
        """A leaf `(...)` as `(N, ...)`, sharded like the rows."""
        step = jnp.zeros_like(one_step(self.source), dtype=bool)
        rows = step.any(axis=tuple(range(1, step.ndim)))
        return repeat_over(leaf, rows.reshape(-1, *[1] * leaf.ndim))


def share_by_cell(cell: Any, carry: Any, x: Any, rows: Rows | None) -> Any:
    """Repeat leaves that lack the batch axis, by comparison with the cell's `initial_carry`.

    Args:
        cell: the cell.
        carry: the given carry.
        x: the types of one step's input.
        rows: the batch axis.

    Returns:
        The carry; unchanged if the cell does not tell.
    """
    initial_carry = getattr(cell, "initial_carry", None)
    if rows is None or initial_carry is None:
        return carry
    cell_carry = _types(initial_carry, x)
    structure: Any = jax.tree.structure(carry)
    if cell_carry is None or jax.tree.structure(cell_carry) != structure:
        return carry
    leaves = list(zip(jax.tree.leaves(carry), jax.tree.leaves(cell_carry), strict=True))
    if all(leaf.shape == there.shape for leaf, there in leaves):
        return carry
    # The batch axis grows with the batch.
    grown = jax.tree.leaves(_types(initial_carry, jax.tree.map(lambda leaf: _with_one_row_more(leaf, rows.size), x)))

    def share(leaf: Any, there: Any, larger: Any) -> Any:
        row = there.shape[1:]
        has_rows = there.shape == (rows.size, *row) and larger.shape == (rows.size + 1, *row)
        return rows.repeat(leaf) if has_rows and leaf.shape == row else leaf

    if len(grown) != len(leaves):
        return carry
    return jax.tree.unflatten(structure, [share(*pair, larger) for pair, larger in zip(leaves, grown, strict=True)])


def share_by_step(carry: Any, new_carry: Any, rows: Rows | None) -> Any:
    """Repeat leaves that a step returns with a batch axis in front and otherwise unchanged.

    Args:
        carry: the step's carry.
        new_carry: the types of its new carry.
        rows: the batch axis.

    Returns:
        The carry.
    """

    def share(leaf: Any, new_leaf: Any) -> Any:
        if rows is None or not may_lack_rows(leaf, rows) or new_leaf.shape != (rows.size, *leaf.shape):
            return leaf
        return rows.repeat(leaf)

    return jax.tree.map(share, carry, new_carry)


def share_all(carry: Any, rows: Rows | None) -> Any:
    """Repeat each leaf that may lack the batch axis; the same object if none does."""
    if rows is None or not any(may_lack_rows(leaf, rows) for leaf in jax.tree.leaves(carry)):
        return carry
    return jax.tree.map(lambda leaf: rows.repeat(leaf) if may_lack_rows(leaf, rows) else leaf, carry)


def may_lack_rows(leaf: Any, rows: Rows) -> bool:
    """Whether a leaf `(...)` may stand for rows `(N, ...)`."""
    return leaf.ndim > 0 and leaf.shape[0] != rows.size


def _types(initial_carry: Callable[[Any], Any], x: Any) -> Any:
    # A user's cell may have an `initial_carry` with other arguments.
    try:
        return jax.eval_shape(initial_carry, x)
    except Exception:
        return None


def _with_one_row_more(leaf: Any, size: Any) -> Any:
    has_rows = leaf.ndim > 0 and leaf.shape[0] == size
    return jax.ShapeDtypeStruct((size + 1, *leaf.shape[1:]) if has_rows else leaf.shape, leaf.dtype)
