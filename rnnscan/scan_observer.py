"""Let a tool see the scans of a function that it runs: those of nets, of Flax modules and of functions with `scan`.

`scan` hands its arguments to the observer of the context, if any. The observer runs the scan, as it is or changed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import jax


@runtime_checkable
class ScanObserver(Protocol):
    """Runs scans in place of `scan`."""

    def scan(self, cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        """Run a scan, by `rnnscan.scan` too, which no observer sees while this runs.

        Args:
            cell: the cell.
            params: its parameters.
            carry: the carry before the first step.
            xs: the inputs.
            options: all other arguments of `scan`, with their defaults.

        Returns:
            The carry after the last step, and the stacked outputs.
        """
        ...


# Part of jit's cache key: a function that a user jits is traced again for each observer.
_observer = jax.make_user_context(None)


@contextmanager
def observing_scans(observer: ScanObserver | None) -> Iterator[None]:
    """A context in which an observer runs all scans; with None, nobody does."""
    with _observer(observer):
        yield


def observed_scan(cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any]) -> tuple[Any, Any] | None:
    """The results of a scan that an observer runs; None without one."""
    observer: ScanObserver | None = _observer.value
    if observer is None:
        return None
    with observing_scans(None):
        return observer.scan(cell, params, carry, xs, **options)
