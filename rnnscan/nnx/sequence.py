"""Sequences of unequal lengths, in reverse, and with new starts in them, as `flax.nnx.RNN` has them.

Flax runs the cell at padded steps too, and returns what it gives there. So padding is not skipped here, as
`rnnscan.scan` would; the carry after the last valid step is held beside the one that runs on.

All arrays are time-major here, `(T, *batch, ...)`, and lengths are `(*batch)`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer

from rnnscan._step_wrappers import select_rows
from rnnscan.nnx.module_scan import Call


def flip(tree: Any, seq_lengths: Integer[Array, "*batch"] | None) -> Any:
    """The steps of each row in reverse order: with lengths first the valid ones, and then the padding.

    Args:
        tree: leaves `(T, *batch, ...)`.
        seq_lengths: how many steps of each row are valid; None: all.

    Returns:
        The same, flipped; flipped twice, they are as they were.
    """
    if seq_lengths is None:
        return jax.tree.map(lambda leaf: jnp.flip(leaf, axis=0), tree)

    def flip_rows(leaf: Array) -> Array:
        length = leaf.shape[0]
        backwards = jnp.arange(length)[::-1].reshape(-1, *[1] * seq_lengths.ndim)
        source = (backwards + jnp.minimum(seq_lengths, length)) % length
        return jnp.take_along_axis(leaf, _trailing(source, leaf), axis=0)

    return jax.tree.map(flip_rows, tree)


def flip_reset(reset: Bool[Array, "*steps"], seq_lengths: Integer[Array, "*batch"] | None) -> Array:
    """Where rows start anew in reverse: a document that ends before step t begins, in reverse, at step t - 1."""
    return flip(jnp.concatenate([reset[1:], jnp.zeros_like(reset[:1])]), seq_lengths)


def resetting(call: Call, start: Any) -> Call:
    """A step over `(x, reset)` that begins with the carry `start` in the rows where reset is true."""

    def step(module: Any, carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, reset = scanned
        return call(module, select_rows(reset, start, carry), x)

    return step


def holding_last_valid(call: Call) -> Call:
    """A step over `(x, valid)` whose carry is the running one, and that of the last valid step."""

    def step(module: Any, carries: Any, scanned: Any) -> tuple[Any, Any]:
        (carry, last), (x, valid) = carries, scanned
        carry, y = call(module, carry, x)
        return (carry, select_rows(valid, carry, last)), y

    return step


def _trailing(array: Array, leaf: Array) -> Array:
    """The array with as many axes as the leaf, by new ones of size 1 at the end."""
    return array.reshape(*array.shape, *[1] * (leaf.ndim - array.ndim))
