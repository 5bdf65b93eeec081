"""Functions that take a net in the place of a cell: `(net, params, xs, carry=None)` for `(cell, params, carry, xs)`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from rnnscan.nets.base import Net
from rnnscan.scan import scan


_Result = TypeVar("_Result")


def takes_nets(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Let a function of `(cell, params, carry, xs)` take `(net, params, xs, carry=None)`, the order of a net's call.

    The function gets `carry` and `xs` by name.
    """

    @wraps(function)
    def either(cell: Any, *arguments: Any, **options: Any) -> _Result:
        if not isinstance(cell, Net):
            return function(cell, *arguments, **options)
        order = ("params", "xs", "carry")
        if len(arguments) > len(order):
            raise TypeError(
                f"{function.__name__}: a net takes (net, params, xs, carry=None); got {len(arguments) + 1} positional "
                "arguments. Give the others by name."
            )
        given = dict(zip(order, arguments, strict=False))
        twice = given.keys() & options.keys()
        if twice or not {"params", "xs"} <= given.keys() | options.keys():
            raise TypeError(
                f"{function.__name__}: a net takes (net, params, xs, carry=None); got {sorted({*given, *options})}"
                f"{f', and {min(twice)} twice' if twice else ''}. Give params and xs once each."
            )
        return function(cell, **{"carry": None, **given, **options})

    return either


def run(cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    """Run a cell by `scan`, or a net."""
    if isinstance(cell, Net):
        return cell(params, xs, carry, **options)  # type: ignore[operator]
    return scan(cell, params, carry, xs, **options)
