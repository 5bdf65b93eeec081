"""Which axes a net's inputs have: a sequence and one step are told apart, or the caller is asked."""

from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._messages import describe, describe_shape


def check_sequence(name: str, net: Any, xs: Any, carry: Any, *by_row: Any) -> None:
    """Refuse inputs without a time axis, and those that may be one step or one row.

    A cell of the library says by `input_axes` how many axes one row of one step has, so `(T, N, D)` is a sequence and
    `(D,)` is not. `(A, D)` is either one step of A rows or A steps of one row. It counts as one row where another
    argument says so: the carry, or lengths, a mask or resets without a batch axis.

    Args:
        name: the net's function, for the message.
        net: the net. One whose cell has no `input_axes`, or takes a pytree of inputs, is not checked.
        xs: the inputs.
        carry: the carry to start from, or None.
        by_row: pairs of an argument or None, and the number of axes that it has for one row.

    Raises:
        ValueError: if there is no time axis, or it cannot be told whether there is one.
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
    if carry is None and not any(given is not None and jnp.ndim(given) == axes for given, axes in by_row):
        raise ValueError(
            f"{name}: `xs` must have a time axis and a batch axis, {sequence}; got {describe(xs)}, which may be one "
            f"step {step} or one row {row}. For one step call net.step(params, x, carry). For one row pass xs[:, None] "
            "or carry=net.initial_carry(xs)."
        )


def check_step(net: Any, x: Any, carry: Any) -> None:
    """Refuse a sequence where one step's input is asked for.

    Raises:
        ValueError: if there is an axis more than a batch of rows has, or one less than a row.
    """
    axes = net.input_axes
    if axes is None or not hasattr(x, "ndim"):
        return
    # A carry says how many batch axes there are, and the cell compares the two.
    if x.ndim < 1 + len(axes) or (carry is None and x.ndim > 2 + len(axes)):
        raise ValueError(
            f"step: `x` must be one step's input, {describe_shape(('N', *axes, 'D'))}; got {describe(x)}. For a "
            "sequence call net(params, xs, carry)."
        )


def _as_sequence(x: Any) -> Any:
    return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)


def _shapes(tree: Any) -> list[tuple[Any, ...]]:
    return [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
