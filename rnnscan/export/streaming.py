"""A net or cell that runs step by step: the two functions that an export has for it, and their types."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rnnscan._util.messages import describe, in_words
from rnnscan.nets.base import Net
from rnnscan.nets.pieces import check_runs_in_pieces


class Steps(NamedTuple):
    """The functions of a stream, and the type of one step's input.

    Attributes:
        init: `init(params, x) -> carry`; the values of `x` do not matter.
        step: `step(params, carry, x) -> (carry, y)`.
        x: the type of `x`.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    x: Any


def steps_of(fn: Any, cell: Any, inputs: dict[str, Any]) -> Steps | None:
    """The streaming functions of a net, or of a cell that the user gives; None if there are none.

    Args:
        fn: the function that is exported.
        cell: the cell or net of its steps, or None.
        inputs: the types of the inputs. The first is the sequence `(T, N, ...)`, and `x` is one step of it.

    Raises:
        TypeError: if `cell` has no `initial_carry`.
        ValueError: if `cell` is a net that needs the whole sequence, or the sequence has no time axis.
    """
    if cell is None:
        if not isinstance(fn, Net) or not fn.runs_in_pieces:
            return None
        cell = fn
    check_runs_in_pieces("export.save", cell)
    if not callable(cell) or not hasattr(cell, "initial_carry"):
        raise TypeError(
            "export.save: `cell` must be a cell or net with `initial_carry`; got "
            f"{in_words(cell)}. Give the function of a step an attribute `initial_carry(x)`."
        )
    x = jax.tree.map(_without_time, next(iter(inputs.values())))
    if isinstance(cell, Net):
        net: Any = cell
        return Steps(lambda _, x: net.initial_carry(_with_time(x)), lambda p, carry, x: net.step(p, x, carry=carry), x)
    return Steps(lambda _, x: cell.initial_carry(x), cell, x)


def check_carry(before: Any, after: Any) -> None:
    """Reject a step whose new carry has another type than the carry."""
    if before != after:
        raise TypeError(
            f"export.save: a step must return a carry of the type that it was given; got {after} for {before}. Cast "
            "the new carry in the cell."
        )


def _without_time(leaf: Any) -> Any:
    if not leaf.shape:
        raise ValueError(
            f"export.save: the first input of a net that streams must be (T, N, ...), time first; got {describe(leaf)}."
        )
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _with_time(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], x)
