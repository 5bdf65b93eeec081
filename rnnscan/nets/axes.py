"""Checks of the axes of a net's inputs, which tell a sequence from one step."""

from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._messages import describe, describe_shape


def check_sequence(name: str, net: Any, xs: Any, carry: Any, *by_row: Any) -> None:
    """Reject inputs without a time axis, and inputs that may be one step or one row.

    The cell's `input_axes` give the number of axes of one row of one step: `(T, N, D)` is a sequence, `(D,)` is not.
    `(A, D)` is one step of A rows or A steps of one row. It counts as one row if the carry, lengths, mask or resets
    have no batch axis.

    Args:
        name: the net's function, for messages.
        net: the net. It is not checked if its cell has no `input_axes`, or takes a pytree of inputs.
        xs: the inputs.
        carry: the initial carry, or None.
        by_row: pairs of an argument or None, and its number of axes for one row.
    """
    axes = net.input_axes
    if axes is None or not hasattr(xs, "ndim") or xs.ndim > 2 + len(axes):
        return
    sequence, step, row = (describe_shape((*begin, *axes, "D")) for begin in (("T", "N"), ("N",), ("T",)))
    if xs.ndim < 2 + len(axes):
        raise ValueError(
            f"{name}: `xs` must have a time axis and a batch axis, {sequence}; got {describe(xs)}. For one step call "
            "net.step(params, x, carry)."
        )
    if carry is not None and _shapes(carry) == _shapes(jax.eval_shape(net.initial_carry, _as_sequence(xs))):
        raise ValueError(
            f"{name}: `xs` must have a time axis and a batch axis, {sequence}; got {describe(xs)}, which is one step "
            "for this carry. Call net.step(params, x, carry)."
        )
    if carry is None and not any(array is not None and jnp.ndim(array) == axes for array, axes in by_row):
        raise ValueError(
            f"{name}: `xs` must have a time axis and a batch axis, {sequence}; got {describe(xs)}, which may be one "
            f"step {step} or one row {row}. For one step call net.step(params, x, carry). For one row pass xs[:, None] "
            "or carry=net.initial_carry(xs)."
        )


def check_step(net: Any, x: Any, carry: Any) -> None:
    """Reject a sequence in the place of one step's input."""
    axes = net.input_axes
    if axes is None or not hasattr(x, "ndim"):
        return
    # With a carry, the cell compares its batch axes with those of x.
    if x.ndim < 1 + len(axes) or (carry is None and x.ndim > 2 + len(axes)):
        raise ValueError(
            f"step: `x` must be one step's input, {describe_shape(('N', *axes, 'D'))}; got {describe(x)}. For a "
            "sequence call net(params, xs, carry)."
        )


def _as_sequence(x: Any) -> Any:
    return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)


def _shapes(tree: Any) -> list[tuple[Any, ...]]:
    return [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
