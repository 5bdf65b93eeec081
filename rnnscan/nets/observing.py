"""Which scans a net runs, in order, for reports that describe a net part by part."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerRun:
    """One scan of a net, with the values of the trace that it ran in.

    Attributes:
        cell: the cell, with its key where it has one.
        params: the cell's parameters.
        carry: the initial carry.
        xs: the inputs of the scan.
        options: the other arguments of `scan`.
        ys: the outputs of the scan.
    """

    cell: Any
    params: Any
    carry: Any
    xs: Any
    options: Mapping[str, Any]
    ys: Any


_runs: ContextVar[list[LayerRun] | None] = ContextVar("_runs", default=None)


@contextmanager
def observing() -> Iterator[list[LayerRun]]:
    """Within this context, every layer adds its scan to the list."""
    runs: list[LayerRun] = []
    token = _runs.set(runs)
    try:
        yield runs
    finally:
        _runs.reset(token)


def observe(run: LayerRun) -> None:
    """Add a scan to the list of the context, where there is one."""
    runs = _runs.get()
    if runs is not None:
        runs.append(run)
