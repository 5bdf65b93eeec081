"""Share the time of a run among the operations that run at each moment."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rnnscan.inside.profiling.operations import Operation


class Event(NamedTuple):
    """An operation that ran.

    Attributes:
        start, end: when, in nanoseconds.
        name: the operation.
        line: the thread or stream that it ran on.
    """

    start: float
    end: float
    name: str
    line: int


@dataclass(frozen=True)
class Times:
    """The nanoseconds of a run.

    Attributes:
        within: by operation, the time in which it ran. Operations that run at once share the time.
        between: by loop or call, the time in which none of its operations ran.
    """

    within: dict[str, float]
    between: dict[str, float]


def shared(events: Iterable[Event], operations: Mapping[str, Operation]) -> Times:
    """Share the time of events, so that the sum is that in which at least one of them ran.

    Args:
        events: the events. Those on one line lie within each other, or apart.
        operations: the operations.
    """
    within, between = defaultdict[str, float](float), defaultdict[str, float](float)
    moments = sorted(moment for event in events for moment in _moments(event))
    open_events: dict[int, list[Event]] = defaultdict(list)
    last = 0.0
    for time, _, is_end, event in moments:
        if time > last:
            innermost = [line[-1] for line in open_events.values() if line]
            working = [event.name for event in innermost if not operations[event.name].is_container]
            for name in working:
                within[name] += (time - last) / len(working)
            if innermost and not working:
                # A loop that waits runs on one thread, and its operations may run on another.
                between[max(innermost).name] += time - last
        if is_end:
            open_events[event.line].remove(event)
        else:
            open_events[event.line].append(event)
        last = time
    return Times(dict(within), dict(between))


def _moments(event: Event) -> Iterable[tuple[float, float, bool, Event]]:
    """Begin and end of an event, in the order of events that lie within each other."""
    return (event.start, -event.end, False, event), (event.end, -event.start, True, event)
