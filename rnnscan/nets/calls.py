"""Let functions of a cell take a net: `(net, params, xs, *, carry=None)` for `(cell, params, carry, xs)`."""

from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, overload, runtime_checkable

from rnnscan.nets.axes import check_positional
from rnnscan.nets.base import Net, run_net
from rnnscan.protocols import Cell
from rnnscan.scanning import scan


_Options = ParamSpec("_Options")
_Result = TypeVar("_Result", covariant=True)


@runtime_checkable
class OfCell(Protocol[_Options, _Result]):
    """A function of a cell, for type checkers."""

    def __call__(
        self, cell: Cell, params: Any, carry: Any, xs: Any, *args: _Options.args, **options: _Options.kwargs
    ) -> _Result:
        """Call it with arguments in the order of `scan`."""
        ...


@runtime_checkable
class OfCellOrNet(Protocol[_Options, _Result]):
    """A function of a cell or a net, for type checkers. They cannot say that `carry` is passed by name."""

    @overload
    def __call__(
        self, net: Net, params: Any, xs: Any, carry: Any = None, *args: _Options.args, **options: _Options.kwargs
    ) -> _Result: ...

    @overload
    def __call__(
        self, cell: Cell, params: Any, carry: Any, xs: Any, *args: _Options.args, **options: _Options.kwargs
    ) -> _Result: ...


def takes_nets(function: OfCell[_Options, _Result]) -> OfCellOrNet[_Options, _Result]:
    """Let a function of `(cell, params, carry, xs)` also take `(net, params, xs, *, carry=None)`, as a net's call does.

    The function gets `carry` and `xs` by name.
    """
    of_cell: Any = function

    @wraps(of_cell)
    def either(cell: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(cell, Net):
            return of_cell(cell, *arguments, **options)
        order = ("params", "xs")
        call = f"{of_cell.__name__}(net, params, xs, carry=carry)"
        check_positional(of_cell.__name__, arguments[len(order) :], call=call)
        by_name = dict(zip(order, arguments, strict=False))
        twice = by_name.keys() & options.keys()
        if twice or not {"params", "xs"} <= by_name.keys() | options.keys():
            raise TypeError(
                f"{of_cell.__name__}: a net takes (net, params, xs, *, carry=None); got {sorted({*by_name, *options})}"
                f"{f', and {min(twice)} twice' if twice else ''}. Pass params and xs once each."
            )
        return of_cell(cell, **{"carry": None, **by_name, **options})

    of_either: Any = either
    return of_either


def run(cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    """Run a cell with `scan`, or a net."""
    return (run_net if isinstance(cell, Net) else scan)(cell, params, carry, xs, **options)


def scan_names(net: Any) -> tuple[str, ...]:
    """The names of the scans that a net runs; a layer alone is called "layer"."""
    return tuple(name or "layer" for name in net.scan_names)
