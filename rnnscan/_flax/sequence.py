"""Run a module of Flax over a sequence: layout, lengths, reversal and resets of `linen.RNN` and `nnx.RNN`.

Flax runs a cell at padded steps too and returns their outputs. So lengths do not go to `rnnscan.scan`: each step
carries the last valid carry with the running one.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from absl import logging
from jaxtyping import Array, Integer

from rnnscan._flax.carries import (
    broadcast_over_batch,
    check_reset_to_has_reset,
    reset_target,
    reset_targets_of_both,
)
from rnnscan._util.messages import describe, describe_shape, leaves_with_places
from rnnscan._util.ranks import over_rows
from rnnscan._util.step_wrappers import reverse_reset, select_rows, valid_steps
from rnnscan.nets.pieces import BOTH_DIRECTIONS, REVERSED, check_not_training_carry
from rnnscan.scan_runner import without_runners


# (module, carry, x) -> (carry, y)
Call: TypeAlias = Callable[[Any, Any, Any], tuple[Any, Any]]


class Steps(NamedTuple):
    """The scanned inputs: leaves `(T, *batch, ...)`, or one step of them.

    Attributes:
        x: the cell's input.
        valid: the valid rows; None to return the running carry.
        reset: the rows whose carry is reset before the step, or None.
    """

    x: Any
    valid: Any
    reset: Any


def run_sequence(
    module: str,
    cell: Any,
    inputs: Any,
    run: Callable[[Any, Steps, Any, bool], tuple[Any, Any]],
    *,
    initial_carry: Any,
    make_carry: Callable[[Array], Any],
    make_carry_shapes: Callable[[Array], Any] | None = None,
    seq_lengths: Any,
    reset: Any,
    reset_to: Any,
    return_carry: bool,
    time_major: bool,
    reverse: bool,
    keep_order: bool,
    loop_reverses: bool,
) -> Any:
    """Check and lay out the arguments of an RNN's call, run it, and lay out its results.

    `module` is the name for messages, and the other arguments are the call's, except these. `run(carries, steps,
    reset_to, reverse)` scans time-major steps from the pair (carry, last valid carry or None) and returns such a pair
    and the outputs. `make_carry(xs)` makes the cell's own carry; `make_carry_shapes(xs)` a carry like it whose values
    are not used. With `loop_reverses` `run` reverses sequences of equal lengths, without a flipped copy.
    """
    features = cell.num_feature_axes
    _check_inputs(module, inputs, features)
    time_axis = 0 if time_major else inputs.ndim - features - 1
    rows = inputs.shape[: inputs.ndim - features]
    batch = rows[:time_axis] + rows[time_axis + 1 :]
    xs = jnp.moveaxis(inputs, time_axis, 0)
    if reverse:
        check_not_training_carry(module, initial_carry, REVERSED)
    check_reset_to_has_reset(module, reset_to, reset)
    cell_carry = cache(partial(make_carry, xs))  # Cached, because a random carry draws a key.
    if initial_carry is None:
        try:
            carry = cell_carry()
        except NotImplementedError as error:
            raise TypeError(
                f"{module}: a cell without `initialize_carry` needs an initial carry; got {type(cell).__name__} and "
                "initial_carry=None. Pass `initial_carry`."
            ) from error
    else:
        shapes = cell_carry if make_carry_shapes is None else partial(make_carry_shapes, xs)
        _check_carry_has_rows(module, initial_carry, batch, xs.shape[0], shapes, time_major=time_major)
        carry = broadcast_over_batch(initial_carry, batch, shapes)
    if seq_lengths is not None:
        seq_lengths = _as_lengths(module, seq_lengths, batch, xs.shape[0], time_major=time_major)
    valid = valid_steps(seq_lengths, xs.shape[0]) if return_carry and seq_lengths is not None else None
    if valid is not None:
        _check_rows(module, "seq_lengths", carry, batch)
    if reset is not None:
        reset = jnp.moveaxis(_as_reset(module, reset, rows), time_axis, 0)
        _check_rows(module, "reset", carry, batch)
        reset_to = reset_target(module, cell, reset_to, carry, batch, cell_carry)
        reset = reverse_reset(reset) if reverse else reset

    in_loop = loop_reverses and seq_lengths is None
    if reverse and not in_loop:
        xs, reset = flip((xs, reset), seq_lengths)
    (carry, last_valid), ys = run(
        (carry, None if valid is None else carry), Steps(xs, valid, reset), reset_to, reverse and in_loop
    )
    if reverse and keep_order != in_loop:
        ys = flip(ys, seq_lengths)
    outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, time_axis), ys)
    return (carry if valid is None else last_valid, outputs) if return_carry else outputs


def with_resets(call: Call, reset_to: Any) -> Call:
    """A step over `Steps` and the pair (carry, last valid carry or None)."""

    def step(module: Any, carries: Any, steps: Steps) -> tuple[Any, Any]:
        carry, last_valid = carries
        if steps.reset is not None:
            carry = select_rows(steps.reset, reset_to, carry)
        carry, y = call(module, carry, steps.x)
        if steps.valid is not None:
            last_valid = select_rows(steps.valid, carry, last_valid)
        return (carry, last_valid), y

    return step


def flip(tree: Any, seq_lengths: Integer[Array, "*batch"] | None) -> Any:
    """Reverse the steps of each row of leaves `(T, *batch, ...)`; with lengths the padding comes last, reversed too.

    Applying it twice restores the input.
    """
    if seq_lengths is None:
        return jax.tree.map(lambda leaf: jnp.flip(leaf, axis=0), tree)

    def flip_rows(leaf: Array) -> Array:
        length = leaf.shape[0]
        backwards = jnp.arange(length)[::-1].reshape(-1, *[1] * seq_lengths.ndim)
        source = (backwards + over_rows(jnp.minimum(seq_lengths, length), backwards)) % length
        return jnp.take_along_axis(leaf, source.reshape(*source.shape, *[1] * (leaf.ndim - source.ndim)), axis=0)

    return jax.tree.map(flip_rows, tree)


def run_both(
    name: str,
    module: Any,
    inputs: Any,
    *,
    initial_carry: Any,
    return_carry: bool | None,
    time_major: bool | None,
    reset: Any,
    reset_to: Any,
    of_each: tuple[dict[str, Any], dict[str, Any]],
    **options: Any,
) -> Any:
    """Run the two RNNs of a `Bidirectional` and merge their outputs.

    `name` is the module's, for messages. `of_each` holds options for the forward and for the backward RNN, `options`
    those for both, and the other arguments are the call's.
    """
    forward_rnn, backward_rnn = module.forward_rnn, module.backward_rnn
    if forward_rnn is backward_rnn:
        logging.warning("forward_rnn and backward_rnn is the same object, so they will share parameters.")
    check_not_training_carry(name, initial_carry, BOTH_DIRECTIONS)
    if reset is not None:  # Flax's own RNN has no such argument.
        options["reset"] = reset
    options |= {"return_carry": True, "time_major": module.time_major if time_major is None else time_major}
    forward_carry, backward_carry = (None, None) if initial_carry is None else initial_carry
    targets = reset_targets_of_both(name, reset_to, reset)
    forward_carry, forward = forward_rnn(
        inputs, initial_carry=forward_carry, reverse=False, **options, **of_each[0], **targets[0]
    )
    backward_carry, backward = backward_rnn(
        inputs, initial_carry=backward_carry, reverse=True, keep_order=True, **options, **of_each[1], **targets[1]
    )
    outputs = jax.tree.map(module.merge_fn, forward, backward)
    return_carry = module.return_carry if return_carry is None else return_carry
    return ((forward_carry, backward_carry), outputs) if return_carry else outputs


def _check_inputs(module: str, inputs: Any, features: int) -> None:
    if not hasattr(inputs, "ndim") or inputs.ndim <= features:
        raise ValueError(
            f"{module}: `inputs` must have a time axis and {features} feature axes; got {describe(inputs)}. For one "
            "step call cell(carry, x)."
        )


def _check_carry_has_rows(
    module: str, carry: Any, batch: tuple[int, ...], length: int, make_carry: Callable[[], Any], *, time_major: bool
) -> None:
    """Reject a carry with a row for each step, which means that the inputs have the other layout."""
    rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(carry)}
    if len(batch) != 1 or batch == (length,) or rows != {(length,)}:
        return
    try:
        own = make_carry()
    except NotImplementedError:
        return
    axes = [[jnp.ndim(leaf) for leaf in jax.tree.leaves(tree)] for tree in (carry, own)]
    if axes[0] == axes[1]:  # One axis less is a carry that the rows share.
        raise ValueError(
            f"{module}: the carry must have a row for each of the {batch[0]} rows of the inputs; got {length} rows, "
            f"one for each step. {_layout(time_major=time_major)}"
        )


def _layout(*, time_major: bool) -> str:
    """How the inputs are laid out, and how to change that."""
    read, other = ("(T, batch, ...)", "(batch, T, ...)") if time_major else ("(batch, T, ...)", "(T, batch, ...)")
    return f"With time_major={time_major} inputs are {read}. Pass time_major={not time_major} for {other}."


def _as_lengths(module: str, seq_lengths: Any, batch: tuple[int, ...], length: int, *, time_major: bool) -> Any:
    seq_lengths = jnp.asarray(seq_lengths)
    expected = f"{module}: `seq_lengths` must be integers {describe_shape(batch)}, one for each row"
    if seq_lengths.dtype == jnp.bool_:
        raise ValueError(
            f"{expected}; got the mask {describe(seq_lengths)}. Count its valid steps: mask.sum over the axis of time, "
            "if padding is at the end."
        )
    if len(batch) == 1 and seq_lengths.ndim == 1 and seq_lengths.shape[0] == length != batch[0]:
        raise ValueError(
            f"{expected}; got {describe(seq_lengths)}, one for each step. {_layout(time_major=time_major)}"
        )
    if seq_lengths.shape != batch or not jnp.issubdtype(seq_lengths.dtype, jnp.integer):
        raise ValueError(
            f"{expected}; got {describe(seq_lengths)}. Cast whole numbers of another dtype: seq_lengths.astype(int)."
        )
    # `length` may be more than a narrower dtype has.
    return seq_lengths.astype(jnp.int32) if seq_lengths.dtype.itemsize < 4 else seq_lengths


def _as_reset(module: str, reset: Any, rows: tuple[int, ...]) -> Any:
    reset = jnp.asarray(reset)
    if reset.shape != rows or reset.dtype != jnp.bool_:
        raise ValueError(
            f"{module}: `reset` must be booleans {describe_shape(rows)}, the shape of `inputs` without features; got "
            f"{describe(reset)}. Lay it out like `inputs`, and write reset != 0 for numbers."
        )
    return reset


def _check_rows(module: str, argument: str, carry: Any, batch: tuple[int, ...]) -> None:
    for where, leaf in leaves_with_places(carry, "carry"):
        if jnp.shape(leaf)[: len(batch)] != batch:
            raise ValueError(
                f"{module}: with `{argument}` every leaf of the carry must begin with the batch, "
                f"{describe_shape(batch)}; got {describe(leaf)} at {where}. Pass an `initial_carry` with these rows."
            )


def cell_name(module: Any) -> str:
    """The class of a module's cell, which profilers show: that of rnnscan's cell within a module of Flax."""
    return type(without_runners(getattr(module, "cell", module))).__name__
