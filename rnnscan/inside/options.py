"""The options that the call of a cell or a net takes, for tools that are handed such a call."""

import inspect
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from rnnscan._util.messages import nearest
from rnnscan.nets.base import Net, Options
from rnnscan.scanning import scan


# The arguments of a call, which may be given by name.
ARGUMENTS = ("params", "carry", "xs")
SCAN_OPTIONS = frozenset(inspect.signature(scan).parameters) - {"cell", *ARGUMENTS}


def check_options(function: str, cell: Any, options: Iterable[str]) -> None:
    """Reject an option that the scan of a cell, or the call of a net, does not take.

    Args:
        function: the public function, for the message.
        cell: the cell, or the net.
        options: the names of the options.

    Raises:
        TypeError: if an option is unknown.
    """
    if isinstance(cell, Net):
        call, known = "a net takes (net, params, xs, *, carry=None) and the options of its call", _net_options()
    else:
        call, known = "a cell takes (cell, params, carry, xs) and the options of rnnscan.scan", sorted(SCAN_OPTIONS)
    for option in options:
        if option not in (*ARGUMENTS, *known):
            raise TypeError(f"{function}: {call}; got {option!r}.{nearest(option, [*ARGUMENTS, *known])}")


def _net_options() -> list[str]:
    return ["key", *(field.name for field in fields(Options))]
