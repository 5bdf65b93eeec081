"""The carries that Flax's RNNs are given: shared by rows, and to go back to at resets."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._messages import describe, describe_shape, is_key, is_weak


def share_by_rows(carry: Any, batch: tuple[int, ...], make_own: Callable[[], Any]) -> Any:
    """Broadcast the leaves that leave out the batch axes.

    Args:
        carry: the given carry.
        batch: the batch axes.
        make_own: makes the cell's own carry, whose shapes decide. It is called only where a leaf may lack rows.

    Returns:
        The carry, with rows in each leaf that has them in the cell's own. A cell without a carry of its own changes
        nothing.
    """
    leaves = jax.tree.leaves(carry)
    axes = len(batch)
    if not batch or all(jnp.ndim(leaf) > axes and jnp.shape(leaf)[:axes] == batch for leaf in leaves):
        return carry
    try:
        own = make_own()
    except NotImplementedError:
        return carry
    if not _same_structure(own, carry):
        return carry

    def share(leaf: Any, like: Any) -> Any:
        shape = jnp.shape(like)
        lacks_rows = shape[:axes] == batch and jnp.shape(leaf) == shape[axes:]
        return jnp.broadcast_to(leaf, shape) if lacks_rows and jnp.shape(leaf) != shape else leaf

    return jax.tree.map(share, carry, own)


def carry_to_reset_to(
    module: str, cell: Any, reset_to: Any, carry: Any, batch: tuple[int, ...], make_own: Callable[[], Any]
) -> Any:
    """The carry that resets go back to, of the types of the carry to start from.

    Args:
        module: the module, for the message.
        cell: its cell, for the message.
        reset_to: the given one, whose leaves may leave out the batch axes; None: the cell's own.
        carry: the carry to start from.
        batch: the batch axes.
        make_own: makes the cell's own carry.

    Raises:
        ValueError: if it is of another structure, other shapes or dtypes.
        TypeError: if there is none.
    """
    try:
        there = make_own() if reset_to is None else share_by_rows(reset_to, batch, lambda: carry)
    except NotImplementedError as error:
        raise TypeError(
            f"{module}: `reset` goes back to the cell's own carry; got {type(cell).__name__}, which has no "
            "`initialize_carry`. Give `reset_to`."
        ) from error

    def fits(leaf: Any, like: Any) -> bool:
        # The cell's own carry is typed like its input or parameters, and not like the given one.
        casts = not is_key(leaf) and not is_key(like) and (reset_to is None or is_weak(leaf))
        return jnp.shape(leaf) == jnp.shape(like) and (leaf.dtype == like.dtype or casts)

    there, start = (jax.tree.map(jnp.asarray, tree) for tree in (there, carry))
    if not _same_structure(there, start) or not all(jax.tree.leaves(jax.tree.map(fits, there, start))):
        got, expected = (jax.tree.map(describe, tree) for tree in (there, start))
        if reset_to is None:
            raise ValueError(
                f"{module}: `reset` goes back to the cell's own carry, {got}; got another to start from, {expected}. "
                "Give `reset_to`, a carry like the one to start from."
            )
        rows = f" A leaf may leave out the batch, {describe_shape(batch)}." if batch else ""
        raise ValueError(
            f"{module}: `reset_to` must be a carry like the one to start from, {expected}; got {got}.{rows}"
        )
    return jax.tree.map(lambda leaf, like: leaf if is_key(leaf) else leaf.astype(like.dtype), there, start)


def _same_structure(one: Any, other: Any) -> bool:
    first: Any = jax.tree.structure(one)
    return bool(first == jax.tree.structure(other))


def check_reset_to_has_reset(module: str, reset_to: Any, reset: Any) -> None:
    """Refuse a carry to go back to where nothing goes back.

    Raises:
        ValueError: if there is `reset_to` without `reset`.
    """
    if reset is None and reset_to is not None:
        raise ValueError(f"{module}: `reset_to` is where `reset` goes back to; got it without `reset`. Give both.")


def targets_of_both(module: str, reset_to: Any, reset: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The argument `reset_to` of each of two directions, where it has one.

    Raises:
        TypeError: if it is no pair.
        ValueError: if there is `reset_to` without `reset`.
    """
    check_reset_to_has_reset(module, reset_to, reset)
    if reset_to is None:
        return {}, {}
    if not isinstance(reset_to, tuple | list) or len(reset_to) != 2:
        raise TypeError(
            f"{module}: `reset_to` must be the pair of carries (forward, backward); got "
            f"{jax.tree.map(describe, reset_to)}. Put None for a direction that goes back to its cell's own."
        )
    forward, backward = ({} if there is None else {"reset_to": there} for there in reset_to)
    return forward, backward
