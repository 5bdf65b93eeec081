"""Checks of the arguments of `nnx.RNN`."""

from collections.abc import Mapping
from typing import Any

from flax import nnx


def check_flax_cell(module: str, cell: Any) -> None:
    """Reject anything but a cell of `flax.nnx`."""
    parts = ("initialize_carry", "num_feature_axes", "__call__")
    if isinstance(cell, nnx.Module) and all(hasattr(type(cell), part) for part in parts):
        return
    fix = "Derive your own cells from nnx.RNNCellBase."
    if type(cell).__module__.startswith("flax.linen"):
        fix = "Use rnnscan.linen.RNN for a cell of flax.linen."
    raise TypeError(
        f"{module}: the cell must be a module of flax.nnx with `initialize_carry` and `num_feature_axes`, such as "
        f"nnx.LSTMCell; got {type(cell).__name__}. {fix}"
    )


def check_state_axes(module: str, state_axes: Mapping[Any, Any]) -> None:
    """Reject axes that are neither `nnx.Carry` nor None nor a number."""
    for variables, axis in state_axes.items():
        if axis is not None and axis is not nnx.Carry and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise ValueError(
                f"{module}: `state_axes` must have nnx.Carry, None or the number of an axis for each filter; got "
                f"{axis!r} for {variables!r}. Use nnx.Carry to pass variables from step to step."
            )
