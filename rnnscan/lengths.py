"""Sequences of different lengths: masks, reversal, the last valid step, and packing.

`seq_lengths` `(N,)` is the number of valid steps of each row, from the first step on; a `mask` `(T, N)` may have gaps.
A row without a batch axis has a scalar length, or a mask `(T,)`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Integer, Shaped

from rnnscan._util.messages import describe, is_count, leaves_with_places
from rnnscan._util.ranks import over_rows
from rnnscan._util.step_wrappers import valid_steps


def mask_from_input(xs: Shaped[Array, "time batch *features"], padding_value: Any = 0) -> Bool[Array, "time batch"]:
    """The mask of padded inputs: a step is padding if all its features equal `padding_value`.

    Args:
        xs: inputs `(T, N, ...)`.
        padding_value: the value of padding; may be NaN.

    Returns:
        `(T, N)` booleans, true at valid steps.

    Raises:
        ValueError: if `xs` has no feature axis, because a valid step may equal the value.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> xs = jnp.array([[[1.0, 0.0]], [[0.0, 0.0]]])
        >>> rs.mask_from_input(xs).tolist()
        [[True], [False]]

    Source: Keras' `Masking`, DL4J's `MaskZeroLayer`.
    """
    if xs.ndim < 3:
        raise ValueError(
            f"mask_from_input: `xs` must be (T, N, ...), with features; got {describe(xs)}. "
            "For tokens write tokens != padding; for one row (T, D) write (xs != padding).any(axis=1)."
        )
    is_padding = jnp.isnan(xs) if _is_nan(padding_value) else xs == padding_value
    return ~is_padding.all(axis=tuple(range(2, xs.ndim)))


def reverse_by_length(
    xs: Any,
    seq_lengths: Integer[Array, "*batch"] | None = None,
    *,
    mask: Bool[Array, " time *batch"] | None = None,
) -> Any:
    """Reverse the valid steps of each row; padded steps stay in place.

    With a mask the valid steps are reversed across gaps. Applying it twice restores the input.

    Args:
        xs: a pytree of leaves `(T, N, ...)`, or `(T, ...)` for one row.
        seq_lengths: `(N,)`, or a scalar for one row; 0 and above T are allowed.
        mask: `(T, N)`, or `(T,)` for one row; give it or `seq_lengths`.

    Returns:
        A pytree like `xs`.

    Raises:
        ValueError: if neither or both are given, or they do not fit `xs`.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> rs.reverse_by_length(jnp.array([[1], [2], [3]]), jnp.array([2]))[:, 0].tolist()
        [2, 1, 3]
    """
    if _is_one_row(seq_lengths, mask):
        return _of_one_row(reverse_by_length, xs, seq_lengths, mask, axis=1)
    xs = jax.tree.map(jnp.asarray, xs)
    valid = _valid("reverse_by_length", xs, seq_lengths, mask)
    count, rank = valid.sum(axis=0), jnp.cumsum(valid, axis=0) - 1
    valid_first = jnp.argsort(~valid, axis=0, stable=True)
    opposite = jnp.take_along_axis(valid_first, jnp.clip(over_rows(count - 1, rank) - rank, 0), axis=0)
    source = jnp.where(valid, opposite, jnp.arange(valid.shape[0])[:, None])
    return jax.tree.map(lambda leaf: _take_steps(leaf, source), xs)


def last_valid(
    ys: Any,
    seq_lengths: Integer[Array, "*batch"] | None = None,
    *,
    mask: Bool[Array, " time *batch"] | None = None,
) -> Any:
    """The last valid step of each row; zeros for a row without one.

    Args:
        ys: a pytree of leaves `(T, N, ...)`, or `(T, ...)` for one row.
        seq_lengths: `(N,)`, or a scalar for one row; 0 and above T are allowed.
        mask: `(T, N)`, or `(T,)` for one row; give it or `seq_lengths`.

    Returns:
        A pytree of leaves `(N, ...)`, or `(...)` for one row.

    Raises:
        ValueError: if neither or both are given, or they do not fit `ys`.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> rs.last_valid(jnp.array([[1, 4], [2, 5], [3, 6]]), jnp.array([2, 0])).tolist()
        [2, 0]
    """
    if _is_one_row(seq_lengths, mask):
        return _of_one_row(last_valid, ys, seq_lengths, mask, axis=0)
    ys = jax.tree.map(jnp.asarray, ys)
    valid = _valid("last_valid", ys, seq_lengths, mask)
    if valid.shape[0] == 0:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), ys)
    last = valid.shape[0] - 1 - jnp.argmax(valid[::-1], axis=0)

    def take(leaf: Array) -> Array:
        some = valid.any(axis=0).reshape(-1, *[1] * (leaf.ndim - 2))
        return jnp.where(some, _take_steps(leaf, last[None])[0], jnp.zeros((), leaf.dtype))

    return jax.tree.map(take, ys)


def pack(xs: Any, seq_lengths: Integer[Array, "*batch"], *, total: int | None = None) -> Any:
    """Concatenate the valid steps of all rows, without padding.

    Args:
        xs: a pytree of leaves `(T, N, ...)`, or `(T, ...)` for one row.
        seq_lengths: `(N,)`, or a scalar for one row; a length above T counts as T.
        total: the number of steps of the result, padded with zeros; required under `jax.jit`. None: the number of valid
            steps.

    Returns:
        A pytree of leaves `(total, ...)`.

    Raises:
        ValueError: if lengths are traced and `total` is None, or more than `total` steps are valid.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> rs.pack(jnp.array([[1, 4], [2, 5], [3, 6]]), jnp.array([3, 1])).tolist()
        [1, 2, 3, 4]

    Source: Caffe2's `UnpackRNNSequence`; `torch.nn.utils.rnn.pack_padded_sequence` orders by step.
    """
    xs = jax.tree.map(jnp.asarray, xs)
    if _is_one_row(seq_lengths, None):
        xs, seq_lengths = jax.tree.map(lambda leaf: leaf[:, None], xs), jnp.asarray(seq_lengths)[None]
    valid = _valid("pack", xs, seq_lengths, None)
    lengths = valid.sum(axis=0)
    total = _static_size("pack", "total", lengths, total, np.sum)
    step, row = _steps_and_rows(lengths, total)
    used = jnp.arange(total) < lengths.sum()

    def put(leaf: Array) -> Array:
        if leaf.shape[0] == 0:
            return jnp.zeros((total, *leaf.shape[2:]), leaf.dtype)
        return jnp.where(used.reshape(-1, *[1] * (leaf.ndim - 2)), leaf[step, row], jnp.zeros((), leaf.dtype))

    return jax.tree.map(put, xs)


def unpack(values: Any, seq_lengths: Integer[Array, "*batch"], *, length: int | None = None) -> Any:
    """Split packed steps into rows padded with zeros: the inverse of `pack`.

    Args:
        values: a pytree of leaves `(total, ...)`, row after row.
        seq_lengths: `(N,)`, or a scalar for one row.
        length: T of the result; required under `jax.jit`. None: the largest length.

    Returns:
        A pytree of leaves `(T, N, ...)`, or `(T, ...)` for one row.

    Raises:
        ValueError: if lengths are traced and `length` is None, a length is above `length`, or the lengths need more
            values.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> rs.unpack(jnp.array([1, 2, 3, 4]), jnp.array([3, 1])).tolist()
        [[1, 4], [2, 0], [3, 0]]

    Source: Caffe2's `PackRNNSequence`.
    """
    if _is_one_row(seq_lengths, None):
        rows = unpack(values, jnp.asarray(seq_lengths)[None], length=length)
        return jax.tree.map(lambda leaf: leaf[:, 0], rows)
    values = jax.tree.map(jnp.asarray, values)
    length = _static_size("unpack", "length", seq_lengths, length, np.max)
    for where, leaf in leaves_with_places(values, "values"):
        if not isinstance(seq_lengths, jax.core.Tracer) and leaf.shape[0] < int(np.sum(seq_lengths)):
            raise ValueError(
                f"unpack: there must be a value for each of the {int(np.sum(seq_lengths))} steps; got {describe(leaf)} "
                f"at {where}. Pass values packed row after row, and their lengths."
            )
    valid = valid_steps(seq_lengths, length)
    first = jnp.cumsum(seq_lengths) - seq_lengths
    place = first[None] + jnp.arange(length)[:, None]

    def take(leaf: Array) -> Array:
        if leaf.shape[0] == 0:
            return jnp.zeros((length, valid.shape[1], *leaf.shape[1:]), leaf.dtype)
        taken = leaf[jnp.minimum(place, leaf.shape[0] - 1)]
        return jnp.where(valid.reshape(*valid.shape, *[1] * (leaf.ndim - 1)), taken, jnp.zeros((), leaf.dtype))

    return jax.tree.map(take, values)


def _is_one_row(seq_lengths: Any, mask: Any) -> bool:
    """Whether lengths or a mask are for one row without a batch axis."""
    return (seq_lengths is not None and jnp.ndim(seq_lengths) == 0) or (mask is not None and jnp.ndim(mask) == 1)


def _of_one_row(function: Any, tree: Any, seq_lengths: Any, mask: Any, *, axis: int) -> Any:
    """Apply a function of a batch to one row; `axis` is the batch axis of the result."""
    rows = function(
        jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], tree),
        None if seq_lengths is None else jnp.asarray(seq_lengths)[None],
        mask=None if mask is None else jnp.asarray(mask)[:, None],
    )
    return jax.tree.map(lambda leaf: jnp.squeeze(leaf, axis), rows)


def _steps_and_rows(lengths: Array, total: int) -> tuple[Array, Array]:
    """The step and the row of each packed value."""
    ends = jnp.cumsum(lengths)
    row = jnp.minimum(jnp.searchsorted(ends, jnp.arange(total), side="right"), lengths.shape[0] - 1)
    step = jnp.arange(total) - (ends - lengths)[row]
    return jnp.clip(step, 0, jnp.maximum(lengths[row] - 1, 0)), row


def _static_size(function: str, argument: str, lengths: Any, size: Any, reduce: Any) -> int:
    if size is not None and not is_count(size, least=0):
        raise ValueError(f"{function}: `{argument}` must be a number of steps of at least 0, or None; got {size!r}.")
    if isinstance(lengths, jax.core.Tracer):
        if size is None:
            raise ValueError(
                f"{function}: under jit and other transforms `{argument}` must be given; got traced lengths "
                f"{describe(lengths)} and {argument}=None. Pass the largest size that can occur."
            )
        return int(size)
    needed = int(reduce(lengths)) if lengths.size else 0
    if size is not None and size < needed:
        raise ValueError(f"{function}: `{argument}` must be at least {needed} for these lengths; got {size}.")
    return needed if size is None else int(size)


def _take_steps(leaf: Array, steps: Array) -> Array:
    """The steps `(k, N)` of each row of a leaf `(T, N, ...)`."""
    if leaf.shape[0] == 0:
        return leaf
    return jnp.take_along_axis(leaf, steps.reshape(*steps.shape, *[1] * (leaf.ndim - 2)), axis=0)


def _valid(function: str, tree: Any, seq_lengths: Any, mask: Any) -> Array:
    if (seq_lengths is None) == (mask is None):
        which = "neither" if mask is None else "both"
        raise ValueError(f"{function}: one of `seq_lengths` and `mask` must be given; got {which}.")
    places = leaves_with_places(tree, "xs")
    if not places:
        raise ValueError(f"{function}: there must be at least one array; got {tree!r}.")
    for where, leaf in places:
        rows = jnp.shape(seq_lengths)[0] if mask is None else mask.shape[1]
        steps = leaf.shape[:1] if mask is None else mask.shape[:1]
        if leaf.ndim < 2 or leaf.shape[:2] != (*steps, rows):
            expected = f"(T, {rows}, ...)" if mask is None else f"({mask.shape[0]}, {rows}, ...)"
            raise ValueError(
                f"{function}: leaves must be {expected}, to fit the lengths or the mask; got {describe(leaf)} at "
                f"{where}. Sequences are time-major."
            )
    return valid_steps(jnp.asarray(seq_lengths), places[0][1].shape[0]) if mask is None else mask


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))
