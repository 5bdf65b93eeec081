"""The memory choices that planning considers, ordered by estimated time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from typing import Any

from rnnscan._util.divisors import near_divisor
from rnnscan.checkpointing import NestedScan, nested
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.memory import Memory
from rnnscan.planning.cost import forward_time, offloading_time, training_time
from rnnscan.planning.estimate import solving_time


# With more names than this, they are dropped one by one, in order.
_MOST_NAMES = 4
# Schedules with more slots gain little over segments of one length, and take seconds to find.
_MOST_SLOTS = 512


@dataclass(frozen=True)
class Candidate:
    """A memory choice, and the estimated time of one step with it, in nanoseconds."""

    memory: Memory
    time: float


def candidates(plans: Sequence[ExecutionPlan], *, can_offload: bool = False) -> list[Candidate]:
    """List memory choices by estimated time. Among equal times, choices that keep more come first.

    Args:
        plans: the plans of the calls that share the choice, all with sequences of one length. A net has several.
        can_offload: whether the device's memory is separate from the host's.

    Returns:
        Choices of recomputed names, offloaded names, chunks, and segments: of one length, nested, and scheduled.
    """
    calls = [plan.call for plan in plans]
    names = tuple(dict.fromkeys(name for call in calls for name in call.names.known))
    length = int(calls[0].length)
    solving = sum(map(solving_time, plans))
    forward = solving + sum(map(forward_time, plans))

    @cache  # Most candidates keep the same names, and each estimate takes a trace of the gradient.
    def time_of(kept: tuple[str, ...]) -> float:
        return solving + sum(training_time(plan, kept) for plan in plans)

    def candidate(memory: Memory, *, again: float = 0.0, offloading: float = 0.0) -> Candidate:
        kept = () if memory.recompute == "all" else tuple(name for name in names if name not in memory.recompute)
        return Candidate(memory, time_of(kept) + again * forward + offloading)

    choices = [candidate(Memory(recompute=chosen)) for chosen in _dropped(names)]
    choices.append(candidate(Memory(recompute="all")))
    solves = [call.parallel for call in calls if call.parallel is not None]
    has_chunk = any(newton.chunk is not None for newton in solves)
    if length >= 8 and calls[0].engine != "lax" and not has_chunk:  # The lax engine has no chunks.
        choices += [candidate(Memory(chunk=4)), candidate(Memory(recompute="all", chunk=4))]
    if can_offload:
        for chosen in _dropped(names):
            offload = tuple(name for name in names if name not in chosen)
            if offload:
                moving = sum(offloading_time(plan, offload) for plan in plans)
                choices.append(candidate(Memory(recompute=chosen, offload=offload), offloading=moving))
    for segment, again, again_of_names in _segments(length):
        choices.append(candidate(Memory(recompute="all", segment=segment), again=again))
        if names:
            choices.append(candidate(Memory(segment=segment), again=again_of_names))
    return sorted(choices, key=lambda choice: choice.time)


def _dropped(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The sets of names to recompute. All names together are `recompute="all"`, a separate choice."""
    if len(names) > _MOST_NAMES:
        yield from (tuple(names[:count]) for count in range(len(names)))
    else:
        yield ()
        for count in range(1, len(names)):
            yield from combinations(names, count)


def _segments(length: int) -> Iterator[tuple[Any, float, float]]:
    """Values of `Memory.segment`, each with the number of additional runs of a step.

    The last figure is for segments that keep names while they run.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", for segments; Griewank and Walther 2000,
    "Algorithm 799: Revolve", for schedules.
    """
    size = 2 ** max(0, (length - 1).bit_length() - 1)
    while size >= 4 and size < length:
        yield near_divisor(length, size), 1.0, 1.0
        size //= 2
    slots = min(_MOST_SLOTS, length // 2)
    while slots >= 4:
        schedule = _schedule(length, slots)
        if schedule is not None:
            # One evaluation is the forward pass, and one is in the cost of a step without names.
            with_names = NestedScan(schedule.sub_scans, internal_size=1)
            yield schedule, schedule.evaluations / length - 2, with_names.evaluations / length - 1
        slots //= 2
    for levels in (2, 3):
        root = round(length ** (1 / (levels + 1)))
        for inner in (2 * root, root):
            sizes, outer = [], length
            for level in range(levels, 0, -1):
                outer = near_divisor(outer, inner**level)
                sizes.append(outer)
            if inner >= 2 and length > sizes[0] and all(a > b for a, b in pairwise(sizes)):
                yield tuple(sizes), float(levels), float(levels)


def _schedule(length: int, slots: int) -> NestedScan | None:
    try:
        schedule = nested(length, slots)
    except ValueError:  # Too few slots at any depth.
        return None
    return schedule if any(sub_scan.segment for sub_scan in schedule.sub_scans) else None
