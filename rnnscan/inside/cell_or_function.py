"""A plain function with three arguments: a cell, or a function of its own?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from typing import Any

import jax

from rnnscan.scan_observer import observing_scans
from rnnscan.scanning import scan


@dataclass(frozen=True)
class Attempt:
    """A trace of a call, without a run.

    Attributes:
        failure: the error that it raises; None: it works.
        scans: the number of scans that it runs.
        closed: its jaxpr; None if it fails.
        types: the types of its results; None if it fails.
    """

    failure: Exception | None
    scans: int = 0
    closed: Any = None
    types: Any = None

    @classmethod
    def at(cls, call: Callable[..., Any], *arguments: Any) -> "Attempt":
        """Trace a call with pytrees of arrays."""
        counter = _Counter()
        try:
            with observing_scans(counter):
                closed, types = jax.make_jaxpr(call, return_shape=True)(*arguments)
        except Exception as error:  # Whatever the function raises: its error is shown if nothing else fits.
            return cls(error)
        return cls(None, counter.count, closed, types)


def may_be_cell(function: Any) -> bool:
    """Whether a plain function may be a cell. A `partial` of the library's functions runs scans of its own."""
    function = unwrap(function)  # of jax.jit
    return not (isinstance(function, partial) and getattr(function.func, "__module__", "").startswith("rnnscan."))


def is_cell(as_cell: Attempt, as_function: Attempt, message: str) -> bool:
    """Whether a function is meant as a cell: it runs as one, and as nothing else.

    Args:
        as_cell: its scan.
        as_function: its call.
        message: what to say if both work.

    Raises:
        ValueError: if both work.
    """
    if as_cell.failure is None and as_function.failure is None:
        raise ValueError(message)
    return as_cell.failure is None


class _Counter:
    """Counts the scans of a function."""

    def __init__(self) -> None:
        self.count = 0

    def scan(self, cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        """Run a scan."""
        self.count += 1
        return scan(cell, params, carry, xs, **options)
