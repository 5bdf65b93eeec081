"""The rows of a batch: which axis they are on, a choice of them, and padding."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from rnnscan._util.varying import explicit_spec


def rows_of(cell: Any, carry: Any, xs: Any, valid: Any, reset: Any) -> int | None:
    """The number of rows N of a scan; None if nothing shows that it has a batch axis.

    Lengths, masks and resets show it. Otherwise all leaves `(N, ...)` of the carry and `(T, N, ...)` of the inputs must
    agree; and a cell that has `input_axes` knows the axes of one row.
    """
    for by_row in (valid, reset):
        if by_row is not None:
            return by_row.shape[1] if by_row.ndim == 2 else None
    inputs = [leaf.shape[1:] for leaf in jax.tree.leaves(xs)]
    axes = getattr(cell, "input_axes", None)
    if axes is not None and inputs and len(inputs[0]) <= 1 + len(axes):
        return None
    shapes = [*(jnp.shape(leaf) for leaf in jax.tree.leaves(carry)), *inputs]
    sizes = {shape[0] for shape in shapes if shape}
    return sizes.pop() if len(sizes) == 1 else None


def select(value: Any, rows: Sequence[int] | None, axis: int, count: int | None) -> Any:
    """The chosen rows of a value; the value itself if its axis is not that of the rows."""
    if rows is None or not _has_rows(value, axis, count):
        return value
    places = (slice(None),) * axis + (np.array(rows, np.int32),)
    spec = [*explicit_spec(jax.typeof(value)), *[None] * value.ndim][: value.ndim]
    if not any(spec):
        return value[places]
    spec[axis] = None  # The chosen rows lie on all devices.
    return value.at[places].get(out_sharding=PartitionSpec(*spec))


def spread(chosen: Any, value: Any, rows: Sequence[int] | None, axis: int, count: int | None) -> Any:
    """The transpose of `select`: zeros like the value, with the chosen rows in their places."""
    if rows is None or not _has_rows(value, axis, count):
        return chosen
    (whole,) = jax.linear_transpose(lambda value: select(value, rows, axis, count), value)(chosen)
    return whole


def without_padding(value: Any, valid: Any, axis: int) -> Any:
    """The value with zeros in rows where the step is padding, if its axis is that of the rows."""
    if valid is None or (valid.ndim and not _has_rows(value, axis, valid.shape[0])):
        return value
    shape = (1,) * axis + valid.shape + (1,) * (value.ndim - axis - valid.ndim)
    return jnp.where(valid.reshape(shape), value, jnp.zeros_like(value))


def _has_rows(value: Any, axis: int, count: int | None) -> bool:
    return count is not None and len(value.shape) > axis and value.shape[axis] == count
