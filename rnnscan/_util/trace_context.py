"""What the trace of a function depends on besides its arguments. All of it is part of jit's cache key."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax


class TraceContext(NamedTuple):
    """The context of a trace. Those who use a field know its type.

    Attributes:
        heuristics: how scans are planned; None: as the platform wants (`engine/costs/heuristics.py`).
        unit_axis: the name of the axis of a mesh over which hidden units are sharded (`engine/units/mesh.py`).
        is_differentiated: whether programs may have a backward pass; exported ones have none (`memory.py`).
        reader: reads the names of the step that is traced (`naming.py`).
        path: the path of the part of a net that is traced; None where no tool wants it (`paths.py`).
        observer: the tool that observes scans (`scan_observer.py`).
        window: where these scans are in a longer one; None: they are whole.
        is_report: whether a report runs calls for itself, which need no key (`randomness.py`).
    """

    heuristics: Any = None
    unit_axis: str = "model"
    is_differentiated: bool = True
    reader: Any = None
    path: tuple[str, ...] | None = None
    observer: Any = None
    window: Any = None
    is_report: bool = False


_context = jax.make_user_context(TraceContext())


def trace_context() -> TraceContext:
    """The context in force."""
    context: TraceContext = _context.value
    return context


@contextmanager
def tracing_with(**fields: Any) -> Iterator[None]:
    """A context in which some fields of the trace context are others."""
    with _context(trace_context()._replace(**fields)):
        yield
