"""Checks of a net's inputs: arrays, and their axes, which tell a sequence from one step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan._checks import as_arrays
from rnnscan._util.messages import describe, describe_shape, describe_tree


# The type of arguments that must not be there.
if TYPE_CHECKING:
    NoArgument: TypeAlias = Never
else:
    NoArgument = Any  # beartype takes `Never` for results alone.


def check_positional(name: str, positional: Sequence[Any], *, call: str = "net(params, xs, carry=carry)") -> None:
    """Reject a third positional argument of a net.

    Args:
        name: the net's function, for messages.
        positional: the positional arguments after the second.
        call: how to call it, for messages.

    Raises:
        TypeError: if there are any.
    """
    if positional:
        got = ", ".join(map(describe_tree, positional))
        raise TypeError(
            f"{name}: a net takes its carry by name, {call}, because a cell takes (params, carry, x) and scan (cell, "
            f"params, carry, xs); got a third positional argument, {got}."
        )


def as_sequence(name: str, net: Any, xs: Any, carry: Any, *by_row: Any) -> Any:
    """The inputs as arrays, if they have a time axis and cannot be mistaken for one step or one row.

    The cell's `input_axes` give the number of axes of one row of one step: `(T, N, D)` is a sequence, `(D,)` is not.
    `(A, D)` is one step of A rows or A steps of one row. It counts as one row if the carry, lengths, mask or resets
    have no batch axis.

    Args:
        name: the net's function, for messages.
        net: the net. It is not checked if its cell has no `input_axes`, or takes a pytree of inputs.
        xs: the inputs.
        carry: the initial carry, or None.
        by_row: pairs of an argument or None, and its number of axes for one row.

    Returns:
        The inputs.

    Raises:
        TypeError: if they are not arrays.
        ValueError: if their axes do not fit.
    """
    axes = net.input_axes
    if axes is not None and not hasattr(xs, "ndim"):
        raise TypeError(
            f"{name}: `xs` must be one array, {describe_shape(('T', 'N', *axes, 'D'))}, for this cell; got "
            f"{describe_tree(xs)}. Stack a list of steps with jnp.stack."
        )
    xs = as_arrays(xs, "xs", function=name)
    if axes is not None and xs.ndim <= 2 + len(axes):
        _check_axes(name, net, xs, carry, by_row)
    return xs


def _check_axes(name: str, net: Any, xs: Any, carry: Any, by_row: Any) -> None:
    axes = net.input_axes
    sequence, step, row = (describe_shape((*begin, *axes, "D")) for begin in (("T", "N"), ("N",), ("T",)))
    if xs.ndim < 2 + len(axes):
        raise ValueError(
            f"{name}: `xs` must have a time axis and a batch axis, {sequence}; got {describe(xs)}. For one step call "
            "net.step(params, x, carry=carry)."
        )
    if carry is not None and _shapes(carry) == _shapes(jax.eval_shape(net.initial_carry, _one_step_long(xs))):
        raise ValueError(
            f"{name}: `xs` must have a time axis and a batch axis, {sequence}; got {describe(xs)}, which is one step "
            "for this carry. Call net.step(params, x, carry=carry)."
        )
    if carry is None and not any(array is not None and jnp.ndim(array) == axes for array, axes in by_row):
        raise ValueError(
            f"{name}: `xs` must have a time axis and a batch axis, {sequence}; got {describe(xs)}, which may be one "
            f"step {step} or one row {row}. For one step call net.step(params, x, carry=carry). For one row pass "
            "xs[:, None] or carry=net.initial_carry(xs)."
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
            "sequence call net(params, xs, carry=carry)."
        )


def _one_step_long(x: Any) -> Any:
    return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)


def _shapes(tree: Any) -> list[tuple[Any, ...]]:
    return [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
