"""The carries that users pass to `linen.RNN` and `nnx.RNN`: shared by the rows, or to reset to."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import describe, describe_shape, is_key, is_weak


def broadcast_over_batch(carry: Any, batch: tuple[int, ...], make_carry: Callable[[], Any]) -> Any:
    """Broadcast the leaves that leave out the batch axes.

    Args:
        carry: the given carry.
        batch: the batch axes.
        make_carry: makes the cell's own carry, which gives the shapes. It is called only if a leaf may lack rows.

    Returns:
        The carry; unchanged if the cell has no initial carry.
    """
    leaves = jax.tree.leaves(carry)
    axes = len(batch)
    if not batch or all(jnp.ndim(leaf) > axes and jnp.shape(leaf)[:axes] == batch for leaf in leaves):
        return carry
    try:
        cell_carry = make_carry()
    except NotImplementedError:
        return carry
    if not _same_structure(cell_carry, carry):
        return carry

    def share(leaf: Any, like: Any) -> Any:
        shape = jnp.shape(like)
        lacks_rows = shape[:axes] == batch and jnp.shape(leaf) == shape[axes:]
        return jnp.broadcast_to(leaf, shape) if lacks_rows and jnp.shape(leaf) != shape else leaf

    return jax.tree.map(share, carry, cell_carry)


def reset_target(
    module: str, cell: Any, reset_to: Any, carry: Any, batch: tuple[int, ...], make_own: Callable[[], Any]
) -> Any:
    """The carry that resets go back to, in the dtypes of the initial carry.

    Args:
        module: the module, for messages.
        cell: its cell, for messages.
        reset_to: the given carry, whose leaves may leave out the batch axes; None: the cell's own.
        carry: the initial carry.
        batch: the batch axes.
        make_own: makes the cell's own carry.

    Raises:
        ValueError: if its structure, shapes or dtypes differ from the initial carry's.
        TypeError: if the cell has no initial carry and `reset_to` is None.
    """
    try:
        target = make_own() if reset_to is None else broadcast_over_batch(reset_to, batch, lambda: carry)
    except NotImplementedError as error:
        raise TypeError(
            f"{module}: `reset` goes back to the cell's own carry; got {type(cell).__name__}, which has no "
            "`initialize_carry`. Pass `reset_to`."
        ) from error

    def fits(leaf: Any, like: Any) -> bool:
        # The cell's own carry takes its dtype from inputs or parameters, which may differ from the given carry's.
        casts = not is_key(leaf) and not is_key(like) and (reset_to is None or is_weak(leaf))
        return jnp.shape(leaf) == jnp.shape(like) and (leaf.dtype == like.dtype or casts)

    target, start = (jax.tree.map(jnp.asarray, tree) for tree in (target, carry))
    if not _same_structure(target, start) or not all(jax.tree.leaves(jax.tree.map(fits, target, start))):
        got, expected = (jax.tree.map(describe, tree) for tree in (target, start))
        if reset_to is None:
            raise ValueError(
                f"{module}: `reset` goes back to the cell's own carry, which must be like the initial one, {expected}; "
                f"got {got}. Pass `reset_to`."
            )
        rows = f" A leaf may leave out the batch, {describe_shape(batch)}." if batch else ""
        raise ValueError(f"{module}: `reset_to` must be like the initial carry, {expected}; got {got}.{rows}")
    return jax.tree.map(lambda leaf, like: leaf if is_key(leaf) else leaf.astype(like.dtype), target, start)


def check_reset_to_has_reset(module: str, reset_to: Any, reset: Any) -> None:
    """Reject `reset_to` without `reset`."""
    if reset is None and reset_to is not None:
        raise ValueError(f"{module}: `reset_to` is the carry that `reset` goes back to; got no `reset`. Pass both.")


def reset_targets_of_both(module: str, reset_to: Any, reset: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The argument `reset_to` of each of two directions; empty for a direction without one."""
    check_reset_to_has_reset(module, reset_to, reset)
    if reset_to is None:
        return {}, {}
    if not isinstance(reset_to, tuple | list) or len(reset_to) != 2:
        raise TypeError(
            f"{module}: `reset_to` must be the pair of carries (forward, backward); got "
            f"{jax.tree.map(describe, reset_to)}. Pass None for a direction to use its cell's own carry."
        )
    forward, backward = ({} if target is None else {"reset_to": target} for target in reset_to)
    return forward, backward


def _same_structure(tree: Any, other: Any) -> bool:
    first: Any = jax.tree.structure(tree)
    return bool(first == jax.tree.structure(other))
