"""Observe the plans that run, for reports that describe them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rnnscan.engine.plan.execution_plan import ExecutionPlan


@dataclass(frozen=True)
class Observed:
    """A plan that ran.

    Attributes:
        plan: the plan, with the arrays of its trace.
        options: the arguments of `scan` besides the parameters, the carry and the inputs, as they were given.
        ys: the stacked outputs.
    """

    plan: ExecutionPlan
    options: dict[str, Any]
    ys: Any


_observed: ContextVar[list[Observed] | None] = ContextVar("_observed", default=None)


@contextmanager
def observing() -> Iterator[list[Observed]]:
    """A context that lists the plans of all scans that run in it, except scans inside a cell."""
    observed: list[Observed] = []
    with _observing_to(observed):
        yield observed


@contextmanager
def inside_scan() -> Iterator[None]:
    """A context for the inside of a cell, whose scans are not observed."""
    with _observing_to(None):
        yield


def is_observed() -> bool:
    """Whether the context lists the plans of scans."""
    return _observed.get() is not None


def observe(plan: ExecutionPlan, options: dict[str, Any], ys: Any) -> None:
    """Add a plan to the list of the context, if any."""
    observed = _observed.get()
    if observed is not None:
        observed.append(Observed(plan, options, ys))


@contextmanager
def _observing_to(observed: list[Observed] | None) -> Iterator[None]:
    token = _observed.set(observed)
    try:
        yield
    finally:
        _observed.reset(token)
