"""The output of a cell that returns more than one value for a step.

The y of a cell is an array `(N, P)`, or a tuple that begins with one: an attention decoder's is `(output, weights)`.
A cell around it changes the output and returns the other values unchanged.
"""

from typing import Any


def output_of(y: Any) -> Any:
    """The output: y itself, or the first value of a tuple."""
    return y[0] if isinstance(y, tuple) and y else y


def with_output(y: Any, output: Any) -> Any:
    """The same y with another output."""
    return (output, *y[1:]) if isinstance(y, tuple) and y else output


def extras_of(y: Any) -> tuple[Any, ...]:
    """The values after the output."""
    return y[1:] if isinstance(y, tuple) else ()
