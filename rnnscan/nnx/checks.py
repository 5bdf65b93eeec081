"""Checks of the arguments of `nnx.RNN`."""

from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from rnnscan._util.messages import describe_value


def check_flax_cell(module: str, cell: nnx.Module) -> None:
    """Reject modules of `flax.nnx` that are no cells."""
    parts = ("initialize_carry", "num_feature_axes", "__call__")
    if not all(hasattr(type(cell), part) for part in parts):
        raise TypeError(
            f"{module}: the cell must be a module of flax.nnx with `initialize_carry` and `num_feature_axes`, such as "
            f"nnx.LSTMCell; got {type(cell).__name__}. Derive your own cells from nnx.RNNCellBase."
        )


def check_by_name(module: str, positional: Sequence[Any]) -> None:
    """Reject positional arguments after the cell."""
    if positional:
        got = ", ".join(describe_value(each).partition("\n")[0] for each in positional)
        raise TypeError(
            f"{module}: all options must be passed by name; got {got} after the cell. Write "
            "RNN(cell, in_features=inputs.shape[-1], rngs=nnx.Rngs(0)) for a cell of rnnscan, and RNN(cell) for one of "
            "flax.nnx."
        )


def check_state_axes(module: str, state_axes: Mapping[Any, Any]) -> None:
    """Reject axes that are neither `nnx.Carry` nor None nor a number."""
    for variables, axis in state_axes.items():
        if axis is not None and axis is not nnx.Carry and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise ValueError(
                f"{module}: `state_axes` must have nnx.Carry, None or the number of an axis for each filter; got "
                f"{axis!r} for {variables!r}. Use nnx.Carry to pass variables from step to step."
            )
