"""The outputs of cells that return several values per step, such as `(output, weights)` of an attention decoder.

A wrapper changes the output, the first value of y, and returns the others unchanged.
"""

from typing import Any


def output_of(y: Any) -> Any:
    """Return y, or its first value if it is a tuple."""
    return y[0] if isinstance(y, tuple) and y else y


def with_output(y: Any, output: Any) -> Any:
    """Replace the output of y."""
    return (output, *y[1:]) if isinstance(y, tuple) and y else output


def extras_of(y: Any) -> tuple[Any, ...]:
    """Return the values after the output."""
    return y[1:] if isinstance(y, tuple) else ()
