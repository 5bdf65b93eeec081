"""Steps that are padding, steps that start anew, and steps that the gradient does not cross.

Each wrapper takes a step `(carry, x) -> (carry, y)` and returns one that scans over one thing more. They are put
around the cell, never into it, so they hold for every cell. From the outside in:

    hold_output( truncate_gradient( skip_padding( reset_carry( cell ))))

so that padding undoes a reset at the same step, and a cut gradient is cut on the way through padding too.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from rnnscan.messages import is_key


Step: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
Padding: TypeAlias = Literal["zero", "hold", "drop"]


def valid_steps(seq_lengths: Int[Array, " batch"], length: int) -> Bool[Array, "time batch"]:
    """Which steps are valid: step t of row n is, where t < seq_lengths[n]. A length may be 0 or above `length`."""
    return jnp.arange(length)[:, None] < seq_lengths[None, :]


def select_rows(condition: Bool[Array, " batch"], on_true: Any, on_false: Any) -> Any:
    """Take each row of a pytree's leaves `(N, ...)` from one of two pytrees of the same types."""

    def select(true_leaf: Any, false_leaf: Any) -> Any:
        rows = condition.reshape(condition.shape + (1,) * (jnp.ndim(true_leaf) - 1))
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


def _without_padding(leaf: Any, valid: Bool[Array, " batch"]) -> Any:
    # A leaf without a batch axis is shared by all rows; a key has no zero and holds no NaN.
    if leaf.ndim == 0 or is_key(leaf):
        return leaf
    return select_rows(valid, leaf, jnp.zeros_like(leaf))


def hold_output(step: Step) -> Step:
    """A step over `((carry, y), (x, valid))` that repeats the last valid y in the rows where the step is padding."""

    def holding_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        inner_carry, last_y = carry
        x, valid = scanned
        inner_carry, y = step(inner_carry, x)
        y = select_rows(valid, y, last_y)
        return (inner_carry, y), y

    return holding_step


def reset_carry(step: Step, initial_carry: Any) -> Step:
    """A step over `(x, reset)` that starts from the initial carry in the rows where reset is true."""

    def resetting_step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        x, reset = scanned
        return step(select_rows(reset, initial_carry, carry), x)

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


def hold_states(
    initial: Array, states: Array, valid: Bool[Array, "time batch"] | None, *, padding: Padding, reverse: bool
) -> Array:
    """The state `(T, N, ...)` after each step, where at padded steps something else may stand for it."""
    if valid is None or padding == "drop":
        return states

    def hold(last: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        state, valid = step
        held = select_rows(valid, state, last)
        return held, held

    return jax.lax.scan(hold, initial, (states, valid), reverse=reverse)[1]
