"""Wrappers of a step: padding, resets and truncated gradients.

Each wrapper takes a step `(carry, x) -> (carry, y)` and returns one with one more scanned input. They go around the
cell, so they work for every cell:

    truncate_gradient(skip_padding(reset_carry(cell)))

In this order padding undoes a reset at the same step, and gradients are cut at padded steps too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Integer

from rnnscan._util.messages import is_count, is_key, is_weak
from rnnscan._util.ranks import over_rows
from rnnscan._util.refs import is_ref
from rnnscan._util.varying import explicit_spec, in_mesh, shard_as
from rnnscan._util.zeros import zeros_of_step


Step: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
# An int, or a symbolic dimension of jax.export.
Length: TypeAlias = Any
Padding: TypeAlias = Literal["zero", "hold", "drop"]


def valid_steps(seq_lengths: Integer[Array, "*batch"], length: Length) -> Bool[Array, " time *batch"]:
    """The mask `t < seq_lengths[n]`. A length may be 0 or above `length`."""
    steps = jnp.arange(length)
    # A length that overflows the index's dtype would become negative.
    most = min(jnp.iinfo(seq_lengths.dtype).max, jnp.iinfo(steps.dtype).max)
    steps = jnp.expand_dims(steps, range(1, 1 + seq_lengths.ndim))
    return steps < over_rows(jnp.minimum(seq_lengths, most).astype(steps.dtype), steps)


def select_rows(condition: Bool[Array, "*batch"], on_true: Any, on_false: Any) -> Any:
    """Select each row of the leaves `(*batch, ...)` from one of two pytrees of the same shapes and dtypes."""

    def select(true_leaf: Any, false_leaf: Any) -> Any:
        rows = condition.reshape(condition.shape + (1,) * (jnp.ndim(true_leaf) - condition.ndim))
        if any(explicit_spec(jax.typeof(true_leaf))):
            rows = shard_as(jnp.broadcast_to(rows, true_leaf.shape), jax.typeof(true_leaf))
            false_leaf = shard_as(false_leaf, jax.typeof(true_leaf))
        return jnp.where(rows, true_leaf, false_leaf)

    return jax.tree.map(select, on_true, on_false)


def skip_padding(step: Step, padding: Padding) -> Step:
    """A step over `(x, valid)` that runs only in valid rows.

    In the other rows y is zero and the carry is held, or zero with padding="drop". Padded inputs become zeros before
    the step: selecting only its results would let a NaN in the padding into the gradient, as 0 * NaN.
    """

    def padded_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, valid = scanned
        new_carry, y = step(carry, _in_rows(valid, x, jax.tree.map(_zeros, x)))
        instead = jax.tree.map(_zeros, carry) if padding == "drop" else carry
        return select_rows(valid, new_carry, instead), select_rows(valid, y, jax.tree.map(jnp.zeros_like, y))

    return padded_step


def skip_stopped(step: Step, first: tuple[Any, Any]) -> Step:
    """A step over `(x, running)` that runs only in running rows. In the others the carry is held, and y is zero.

    The others read the carry and x of the first step, in which all rows ran. Of their own, and of zeros, the step may
    have no finite derivative.
    """

    def step_or_hold(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, running = scanned
        new_carry, y = step(*_in_rows(running, (carry, x), jax.lax.stop_gradient(first)))
        return select_rows(running, new_carry, carry), select_rows(running, y, jax.tree.map(jnp.zeros_like, y))

    return step_or_hold


def _in_rows(valid: Bool[Array, "*batch"], leaves: Any, instead: Any) -> Any:
    """The leaves in valid rows, and those of `instead` in the others."""

    def select(leaf: Any, other: Any) -> Any:
        if is_key(leaf) or is_ref(leaf):  # Keys have neither zero nor NaN, and a ref is the caller's.
            return leaf
        if leaf.ndim == 0:  # Shared by the rows: not valid if it is so in all of them.
            return jnp.where(valid.any(), leaf, other)
        return select_rows(valid, leaf, other)

    return jax.tree.map(select, leaves, instead)


def _zeros(leaf: Any) -> Any:
    return leaf if is_key(leaf) or is_ref(leaf) else jnp.zeros_like(leaf)


def one_step(leaf: Any) -> Any:
    """Zeros like one step of `(T, ...)`, with its sharding, also for T = 0. For keys, which have no zero, the first."""
    if is_ref(leaf):
        return jnp.zeros(leaf.shape[1:], leaf.dtype)
    return leaf[0] if is_key(leaf) and leaf.shape[0] != 0 else zeros_of_step(leaf)


def type_of_step(leaf: Any) -> Any:
    """The type of one step of a leaf `(T, ...)`, with its sharding and the axes over which `shard_map` varies it."""
    if is_ref(leaf):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    if is_count(leaf.shape[0], least=0) and not leaf.shape[0]:  # Zero steps.
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) if is_key(leaf) else jax.eval_shape(zeros_of_step, leaf)
    if isinstance(leaf, jax.Array):
        aval = jax.typeof(leaf)
        if aval.sharding.mesh.empty and not aval.manual_axis_type.varying:  # The trace below takes a millisecond.
            return jax.ShapeDtypeStruct(aval.shape[1:], aval.dtype, weak_type=is_weak(leaf))
        return in_mesh(jax.eval_shape(lambda leaf: leaf[0], leaf), aval, PartitionSpec(*aval.sharding.spec[1:]))
    return jax.eval_shape(lambda leaf: leaf[0], leaf)


def repeat_over(leaf: Any, zeros: Any) -> Any:
    """Broadcast a leaf to the shape and sharding of `zeros`, which have more leading axes.

    It is a sum, because `jnp.broadcast_to` takes neither a sharding nor the varying axes of `shard_map`.
    """
    if is_key(leaf) or is_weak(leaf):
        return jnp.broadcast_to(leaf, jnp.broadcast_shapes(leaf.shape, zeros.shape))
    leaf = over_rows(leaf, zeros)
    return leaf | zeros.astype(bool) if leaf.dtype == bool else leaf + zeros.astype(leaf.dtype)


def reset_carry(step: Step, reset_to: Any) -> Step:
    """A step over `(x, reset)` whose carry is `reset_to` in the rows with reset."""

    def resetting_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, reset = scanned
        return step(select_rows(reset, reset_to, carry), x)

    return resetting_step


def reverse_reset(reset: Bool[Array, " time *batch"]) -> Array:
    """The resets of a reversed run, in time order: an episode then starts with its last step."""
    return jnp.concatenate([reset[1:], jnp.zeros_like(reset[:1])])


def truncate_gradient(step: Step, every: int) -> Step:
    """A step over `(x, index)` that stops the gradient of its carry at steps `every`, `2 * every`, ..."""

    def truncated_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, index = scanned
        cut = (index > 0) & (index % every == 0)

        def stop(leaf: Any) -> Any:
            return jnp.where(cut, jax.lax.stop_gradient(leaf), leaf)

        return step(jax.tree.map(stop, carry), x)

    return truncated_step


def hold_last_valid(ys: Any, valid: Bool[Array, " time *batch"], *, before: Any = None, reverse: bool = False) -> Any:
    """Repeat the last valid value at padded steps.

    Args:
        ys: a pytree of leaves `(T, N, ...)`.
        valid: the mask of valid steps.
        before: values `(N, ...)` before the first valid step; None: zeros.
        reverse: whether the steps run from the last to the first.
    """
    if valid.shape[0] == 0:
        return ys
    if before is None:
        before = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), ys)

    # Without the checkpoint autodiff keeps `valid` broadcast to the size of ys.
    @partial(jax.checkpoint, prevent_cse=False)
    def hold(last: Any, step: tuple[Any, Array]) -> tuple[Any, Any]:
        held = select_rows(step[1], step[0], last)
        return held, held

    return jax.lax.scan(hold, before, (ys, valid), reverse=reverse)[1]
