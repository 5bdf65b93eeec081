"""The plans that a function runs, in order, for reports that describe them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rnnscan.engine.plan import Plan


@dataclass(frozen=True)
class Observed:
    """A plan that ran.

    Attributes:
        plan: the plan, with the arrays of the trace that it ran in.
        ys: the stacked outputs.
    """

    plan: Plan
    ys: Any


_observed: ContextVar[list[Observed] | None] = ContextVar("_observed", default=None)


@contextmanager
def observing() -> Iterator[list[Observed]]:
    """Within this context, every plan that runs is added to the list. A scan within a cell is not."""
    found: list[Observed] = []
    with _observing_to(found):
        yield found


@contextmanager
def inside_scan() -> Iterator[None]:
    """Within this context, a scan is one within a cell."""
    with _observing_to(None):
        yield


def observe(plan: Plan, ys: Any) -> None:
    """Add a plan to the list of the context, if there is one."""
    found = _observed.get()
    if found is not None:
        found.append(Observed(plan, ys))


@contextmanager
def _observing_to(found: list[Observed] | None) -> Iterator[None]:
    token = _observed.set(found)
    try:
        yield
    finally:
        _observed.reset(token)
