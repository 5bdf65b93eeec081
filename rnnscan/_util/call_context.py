"""Notes of errors in a user's function: how a loop called it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from rnnscan._util.messages import describe, describe_tree


_CALLED = " was called as"


def add_call_context(error: Exception, carry: Any, x: Any, xs: Any) -> None:
    """Add the types of the cell's arguments to an error in the cell."""
    if not has_call_context(error):
        described = [jax.tree.map(describe, tree) for tree in (carry, x, xs)]
        fix = " A list is a pytree, not an array of steps: stack it with jnp.stack." if isinstance(xs, list) else ""
        error.add_note(
            f"scan: the cell{_CALLED} cell(params, carry, x), with carry = {described[0]} and x = {described[1]}, the "
            f"first step of xs = {described[2]}. xs is time-major, (T, N, ...), and a cell returns (carry, y).{fix}"
        )
        if type(error).__name__ == "ShardingTypeError":  # JAX does not export it.
            error.add_note(
                "scan: to shard hidden units make all axes of the mesh automatic, axis_types=(AxisType.Auto, ...), and "
                "place parameters by rs.sharding.rules."
            )


def has_call_context(error: Exception) -> bool:
    """Whether a note of an error says how the function was called that raised it: that of the innermost loop does."""
    return any(_CALLED in note for note in getattr(error, "__notes__", ()))


@contextmanager
def called_as(what: str, call: str, returns: str, **arguments: Any) -> Iterator[None]:
    """A context in which a user's function runs. A note tells of an error in it how it was called.

    Args:
        what: the loop and its function, for messages.
        call: the call, as a user would write it.
        returns: a sentence that says what the function returns.
        arguments: its arguments besides the parameters, by name.
    """
    try:
        yield
    except Exception as error:
        if not has_call_context(error):
            described = " and ".join(f"{name} = {describe_tree(value)}" for name, value in arguments.items())
            error.add_note(f"{what}{_CALLED} {call}, with {described}. {returns}")
        raise
