"""Steps that are padding, steps that start anew, and steps that the gradient does not cross.

Each wrapper takes a step `(carry, x) -> (carry, y)` and returns one that scans over one thing more. They are put
around the cell, never into it, so they hold for every cell. From the outside in:

    truncate_gradient( skip_padding( reset_carry( cell )))

so that padding undoes a reset at the same step, and a cut gradient is cut on the way through padding too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer

from rnnscan._messages import is_key, is_weak
from rnnscan._zeros import zeros_of_step


Step: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
# An int, or a symbolic dimension of jax.export.
Length: TypeAlias = Any
Padding: TypeAlias = Literal["zero", "hold", "drop"]


def valid_steps(seq_lengths: Integer[Array, "*batch"], length: Length) -> Bool[Array, " time *batch"]:
    """Which steps are valid: step t of row n is, where t < seq_lengths[n]. A length may be 0 or above `length`."""
    steps = jnp.arange(length)
    # A length that the index's dtype cannot hold would come out negative.
    most = min(jnp.iinfo(seq_lengths.dtype).max, jnp.iinfo(steps.dtype).max)
    steps = jnp.expand_dims(steps, range(1, 1 + seq_lengths.ndim))
    return steps < jnp.minimum(seq_lengths, most).astype(steps.dtype)


def select_rows(condition: Bool[Array, "*batch"], on_true: Any, on_false: Any) -> Any:
    """Take each row of a pytree's leaves `(*batch, ...)` from one of two pytrees of the same types."""

    def select(true_leaf: Any, false_leaf: Any) -> Any:
        rows = condition.reshape(condition.shape + (1,) * (jnp.ndim(true_leaf) - condition.ndim))
        return jnp.where(rows, true_leaf, false_leaf)

    return jax.tree.map(select, on_true, on_false)


def skip_padding(step: Step, padding: Padding) -> Step:
    """A step over `(x, valid)` that happens only in the rows where it is valid.

    In the other rows y is zero and the carry is held, or zero with padding="drop". The step sees zeros in place of
    padded inputs: selecting among results alone would let a NaN in the padding into the gradient, as 0 * NaN.
    """

    def padded_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, valid = scanned
        new_carry, y = step(carry, jax.tree.map(lambda leaf: _without_padding(leaf, valid), x))
        instead = jax.tree.map(jnp.zeros_like, carry) if padding == "drop" else carry
        return select_rows(valid, new_carry, instead), select_rows(valid, y, jax.tree.map(jnp.zeros_like, y))

    return padded_step


def _without_padding(leaf: Any, valid: Bool[Array, "*batch"]) -> Any:
    if is_key(leaf):  # It has no zero, and holds no NaN.
        return leaf
    if leaf.ndim == 0:  # It is shared by the rows, and padding where it is padding in all of them.
        return jnp.where(valid.any(), leaf, jnp.zeros_like(leaf))
    return select_rows(valid, leaf, jnp.zeros_like(leaf))


def one_step(leaf: Any) -> Any:
    """Zeros like one step of a leaf `(T, ...)`, also for T = 0. Keys, which have no zero, are those of the first step.

    The zeros are sharded as the step is, and vary over the same axes of a mesh under `shard_map`.
    """
    return leaf[0] if is_key(leaf) and leaf.shape[0] != 0 else zeros_of_step(leaf)


def repeat_over(leaf: Any, zeros: Any) -> Any:
    """Broadcast a leaf to the shape and the sharding of zeros, which have more axes in front.

    It is a sum, because `jnp.broadcast_to` takes no sharding under an explicit mesh, nor the axes that the zeros vary
    over under `shard_map`.
    """
    if is_key(leaf) or is_weak(leaf):
        return jnp.broadcast_to(leaf, jnp.broadcast_shapes(leaf.shape, zeros.shape))
    return leaf | zeros.astype(bool) if leaf.dtype == bool else leaf + zeros.astype(leaf.dtype)


def reset_carry(step: Step, reset_to: Any) -> Step:
    """A step over `(x, reset)` that starts from `reset_to` in the rows where reset is true."""

    def resetting_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, reset = scanned
        return step(select_rows(reset, reset_to, carry), x)

    return resetting_step


def truncate_gradient(step: Step, every: int) -> Step:
    """A step over `(x, index)` through whose incoming carry no gradient flows at steps `every`, `2 * every`, ..."""

    def truncated_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, index = scanned
        cut = (index > 0) & (index % every == 0)

        def stop(leaf: Any) -> Any:
            return jnp.where(cut, jax.lax.stop_gradient(leaf), leaf)

        return step(jax.tree.map(stop, carry), x)

    return truncated_step


def hold_last_valid(ys: Any, valid: Bool[Array, " time *batch"], *, before: Any = None, reverse: bool = False) -> Any:
    """Repeat the last valid value at the steps that are padding.

    Args:
        ys: a pytree of leaves `(T, N, ...)`.
        valid: which steps are valid.
        before: leaves `(N, ...)` that stand where no valid step came before; None: zeros.
        reverse: whether the steps run from the last to the first.

    Returns:
        Leaves like those of `ys`.
    """
    if valid.shape[0] == 0:
        return ys
    if before is None:
        before = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), ys)

    # Checkpointed, or autodiff would keep `valid` broadcast to the size of ys.
    @partial(jax.checkpoint, prevent_cse=False)
    def hold(last: Any, step: tuple[Any, Array]) -> tuple[Any, Any]:
        held = select_rows(step[1], step[0], last)
        return held, held

    return jax.lax.scan(hold, before, (ys, valid), reverse=reverse)[1]
