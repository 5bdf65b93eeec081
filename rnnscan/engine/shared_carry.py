"""Initial carries without the batch axis: a leaf `(H,)` in place of `(N, H)` is shared by the rows.

Whether a leaf leaves out the batch axis follows from the cell's own `initial_carry`, or from the carry that a step
returns. A leaf that might be either, such as `(N,)` that comes out as `(N, N)`, is not shared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._messages import is_key
from rnnscan._step_wrappers import one_step, repeat_over


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
        """The rows that masks `(T, N)` have, or else the inputs; None where they have none, or do not agree."""
        inputs = [leaf for leaf in jax.tree.leaves(xs) if leaf.ndim > 1]
        masks = [mask for mask in by_row if mask is not None and mask.ndim > 1]
        sizes = {leaf.shape[1] for leaf in masks or inputs}
        if len(sizes) != 1:
            return None
        (size,) = sizes
        # The inputs come first: under `shard_map` a carry must vary as they do.
        fitting = [leaf for leaf in (*inputs, *masks) if leaf.shape[1] == size and not is_key(leaf)]
        return Rows(size, fitting[0]) if fitting else None

    def repeat(self, leaf: Any) -> Any:
        """A leaf `(...)` as `(N, ...)`, sharded as the rows are."""
        step = jnp.zeros_like(one_step(self.source), dtype=bool)
        rows = step.any(axis=tuple(range(1, step.ndim)))
        return repeat_over(leaf, rows.reshape(-1, *[1] * leaf.ndim))


def share_by_cell(cell: Any, carry: Any, x: Any, rows: Rows | None) -> Any:
    """Repeat leaves that lack the batch axis which the cell's own `initial_carry` gives them.

    Args:
        cell: the cell.
        carry: the carry that was passed.
        x: the types of one step's input.
        rows: the batch axis.

    Returns:
        The carry; as it was where the cell does not tell.
    """
    initial_carry = getattr(cell, "initial_carry", None)
    if rows is None or initial_carry is None:
        return carry
    own = _types(initial_carry, x)
    structure: Any = jax.tree.structure(carry)
    if own is None or jax.tree.structure(own) != structure:
        return carry
    leaves = list(zip(jax.tree.leaves(carry), jax.tree.leaves(own), strict=True))
    if all(leaf.shape == there.shape for leaf, there in leaves):
        return carry
    # The batch axis is the one that grows with the batch.
    grown = jax.tree.leaves(_types(initial_carry, jax.tree.map(lambda leaf: _with_one_row_more(leaf, rows.size), x)))

    def share(leaf: Any, there: Any, larger: Any) -> Any:
        row = there.shape[1:]
        has_rows = there.shape == (rows.size, *row) and larger.shape == (rows.size + 1, *row)
        return rows.repeat(leaf) if has_rows and leaf.shape == row else leaf

    if len(grown) != len(leaves):
        return carry
    return jax.tree.unflatten(structure, [share(*pair, larger) for pair, larger in zip(leaves, grown, strict=True)])


def share_by_step(carry: Any, new_carry: Any, rows: Rows | None) -> Any:
    """Repeat leaves that come out of a step with the batch axis in front, and are the same otherwise.

    Args:
        carry: the carry that the step was given.
        new_carry: the types that it returned.
        rows: the batch axis.

    Returns:
        The carry.
    """

    def share(leaf: Any, new_leaf: Any) -> Any:
        if rows is None or not _may_lack_rows(leaf, rows) or new_leaf.shape != (rows.size, *leaf.shape):
            return leaf
        return rows.repeat(leaf)

    return jax.tree.map(share, carry, new_carry)


def share_all(carry: Any, rows: Rows | None) -> Any:
    """Repeat each leaf that may lack the batch axis; the very same carry where none may."""
    if rows is None or not any(_may_lack_rows(leaf, rows) for leaf in jax.tree.leaves(carry)):
        return carry
    return jax.tree.map(lambda leaf: rows.repeat(leaf) if _may_lack_rows(leaf, rows) else leaf, carry)


def _may_lack_rows(leaf: Any, rows: Rows) -> bool:
    return leaf.ndim > 0 and leaf.shape[0] != rows.size


def _types(initial_carry: Callable[[Any], Any], x: Any) -> Any:
    # A cell of the user's may have an `initial_carry` with other arguments. Then it does not tell.
    try:
        return jax.eval_shape(initial_carry, x)
    except Exception:
        return None


def _with_one_row_more(leaf: Any, size: Any) -> Any:
    has_rows = leaf.ndim > 0 and leaf.shape[0] == size
    return jax.ShapeDtypeStruct((size + 1, *leaf.shape[1:]) if has_rows else leaf.shape, leaf.dtype)
