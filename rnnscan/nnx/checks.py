"""The checks of what the modules of this package are given."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from rnnscan._messages import describe, describe_shape, leaves_with_places


def check_cell(module: str, cell: Any) -> None:
    """Refuse what is no cell of `flax.nnx`.

    Raises:
        TypeError: if it is none.
    """
    parts = ("initialize_carry", "num_feature_axes", "__call__")
    if isinstance(cell, nnx.Module) and all(hasattr(type(cell), part) for part in parts):
        return
    fix = "Cells of your own derive from nnx.RNNCellBase."
    if hasattr(cell, "init") and hasattr(cell, "initial_carry"):
        fix = "Make a module of a cell of rnnscan: rnnscan.nnx.Cell(cell, in_features, rngs=nnx.Rngs(0))."
    elif type(cell).__module__.startswith("flax.linen"):
        fix = "A cell of flax.linen goes into rnnscan.linen.RNN."
    raise TypeError(
        f"{module}: the cell must be a module of flax.nnx with `initialize_carry` and `num_feature_axes`, such as "
        f"nnx.LSTMCell; got {type(cell).__name__}. {fix}"
    )


def check_state_axes(module: str, state_axes: Mapping[Any, Any]) -> None:
    """Refuse axes that say nothing of what becomes of variables.

    Raises:
        ValueError: if one is neither `nnx.Carry` nor None nor a number.
    """
    for variables, axis in state_axes.items():
        if axis is not None and axis is not nnx.Carry and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise ValueError(
                f"{module}: `state_axes` must have nnx.Carry, None or the number of an axis for each filter; got "
                f"{axis!r} for {variables!r}. nnx.Carry hands variables on from step to step."
            )


def check_inputs(module: str, inputs: Any, feature_axes: int) -> None:
    """Refuse inputs that have no axis for the steps.

    Raises:
        ValueError: if there are too few axes.
    """
    if inputs.ndim <= feature_axes:
        raise ValueError(
            f"{module}: the inputs must have an axis of steps, and {feature_axes} of features after it, for this cell; "
            f"got {describe(inputs)}. One step alone is the cell's: cell(carry, x)."
        )


def as_lengths(module: str, seq_lengths: Any, batch: tuple[int, ...]) -> Any:
    """The lengths as an array, one for each row.

    Raises:
        ValueError: if they are not integers of the shape of the batch.
    """
    seq_lengths = jnp.asarray(seq_lengths)
    if seq_lengths.shape != batch or not jnp.issubdtype(seq_lengths.dtype, jnp.integer):
        raise ValueError(
            f"{module}: `seq_lengths` must be integers {describe_shape(batch)}, one length a row; got "
            f"{describe(seq_lengths)}. Write seq_lengths.astype(int) for whole numbers of another dtype."
        )
    return seq_lengths


def as_reset(module: str, reset: Any, shape: tuple[int, ...]) -> Any:
    """The resets as an array, one for each step and row.

    Raises:
        ValueError: if they are not booleans of the shape of the inputs without features.
    """
    reset = jnp.asarray(reset)
    if reset.shape != shape or reset.dtype != jnp.bool_:
        raise ValueError(
            f"{module}: `reset` must be booleans {describe_shape(shape)}, as the inputs without their features; got "
            f"{describe(reset)}. It is time-major where the inputs are; write reset != 0 for one of numbers."
        )
    return reset


def check_rows(module: str, argument: str, carry: Any, batch: tuple[int, ...]) -> None:
    """Refuse a carry whose rows cannot be told apart.

    Raises:
        ValueError: if a leaf does not begin with the axes of the batch.
    """
    for where, leaf in leaves_with_places(carry, "carry"):
        if jnp.shape(leaf)[: len(batch)] != batch:
            raise ValueError(
                f"{module}: with `{argument}` every leaf of the carry must begin with the batch, "
                f"{describe_shape(batch)}; got {describe(leaf)} at {where}."
            )
