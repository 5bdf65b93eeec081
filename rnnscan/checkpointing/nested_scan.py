"""Schedules of static nested scans, and the search for the best one."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rnnscan.checkpointing.optimum import Integers, check


_IMPOSSIBLE = np.iinfo(np.int64).min // 4


@dataclass(frozen=True)
class SubScan:
    """Consecutive steps that run as one scan.

    Attributes:
        steps: the number of steps.
        segment: the lengths of the nested segments, as in `Memory.segment`. None: no segments.
    """

    steps: int
    segment: tuple[int, ...] | None


@dataclass(frozen=True)
class NestedScan:
    """A schedule of static loops: consecutive scans, each over nested segments.

    A scan saves the carry at the start of each of its segments, and recomputes each segment on the backward pass. A
    scan of t steps with d levels of segments takes at most

        (d + 2) t evaluations with Memory(recompute="all"),   (d + 1) t evaluations with Memory().

    A segment is recomputed only up to its last inner checkpoint, unless that would cut a loop short. So it takes fewer
    evaluations if the last inner segment is shorter than the others, or the only one. `evaluations` is the exact count
    that XLA runs, with either engine. The `"fission"` engine batches the taped evaluations of a chunk over time, and
    so needs the memory of a few more carries than `slots`; the `"lax"` engine needs two more, for the new carry and
    the cotangent.

    A scan of n segments, during the backward pass of an innermost segment of k steps, holds

        n + ... + k carries, and the checkpoints of the scans before.

    Checkpoints are freed scan by scan. Several scans can therefore need less memory than one: later scans, which are
    backpropagated first, have shorter segments and fit in with the checkpoints of all.

    Attributes:
        sub_scans: the scans, in the order of the steps.
        internal_size: the residuals of one step, in carries, with `Memory()`. None: `Memory(recompute="all")`, which
            saves only carries.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan import cells, checkpointing
        >>> plan = checkpointing.nested(100, slots=50)
        >>> plan.sub_scans
        (SubScan(steps=52, segment=(26,)), SubScan(steps=48, segment=None))
        >>> cell, xs = cells.GRU(4), jnp.ones((100, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> memory = rs.Memory(recompute="all", segment=plan)
        >>> carry, ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)
        >>> ys.shape
        (100, 2, 4)
    """

    sub_scans: tuple[SubScan, ...]
    internal_size: int | None = None

    @property
    def steps(self) -> int:
        """The length of the sequence."""
        return sum(sub_scan.steps for sub_scan in self.sub_scans)

    @property
    def evaluations(self) -> int:
        """How often the cell runs forward in total, including the forward pass."""
        taped = self.internal_size is None
        return self.steps + sum(
            _run_again(sub_scan.steps, sub_scan.segment or (), taped) for sub_scan in self.sub_scans
        )

    @property
    def slots(self) -> int:
        """The most carries held at a time, including those between the steps of the innermost segment."""
        size = 1 if self.internal_size is None else self.internal_size
        held, most = 0, 0
        for sub_scan in self.sub_scans:
            most = max(most, held + _held(sub_scan.steps, sub_scan.segment or (), size))
            held += -(-sub_scan.steps // sub_scan.segment[0]) if sub_scan.segment else sub_scan.steps * size
        return most


def _run_again(steps: int, segments: tuple[int, ...], taped: bool) -> int:
    """Evaluations on the backward pass of a scan whose outermost checkpoints are saved."""
    if not segments:
        return steps if taped else 0
    count, rest = divmod(steps, segments[0])
    lengths = {segments[0]: count, rest: 1 if rest else 0}
    return sum(
        times * (_second_run(length, segments[1:], taped) + _run_again(length, segments[1:], taped))
        for length, times in lengths.items()
    )


def _second_run(steps: int, segments: tuple[int, ...], taped: bool) -> int:
    """Evaluations to recompute the outermost checkpoints in a segment, or its steps if it has none.

    XLA inlines a loop of one iteration and removes dead code, but it cannot remove an iteration of a loop.
    """
    if not segments:
        return 0 if taped and steps == 1 else steps
    count, rest = divmod(steps, segments[0])
    if rest:
        return count * segments[0]
    return steps if count > 1 else 0


def _held(steps: int, segments: tuple[int, ...], size: int) -> int:
    """Slots of one scan: its checkpoints, and those of the segment on its backward pass."""
    if not segments:
        return steps * size
    count, rest = divmod(steps, segments[0])
    whole = count + _held(segments[0], segments[1:], size) if count else 0
    shorter = count + 1 + _held(rest, segments[1:], size) if rest else 0
    return max(whole, shorter)


def nested(steps: int, slots: int, *, sub_scans: int = 4, internal_size: int | None = None) -> NestedScan:
    """Find static nested scans with few evaluations that fit into `slots`.

    The search covers at most `sub_scans` consecutive scans. The first ones have d levels of segments, with the least d
    that the slots allow. The others have d - 1 levels, and as many steps as fit. All segments count as long as the
    first, so a plan with a shorter last segment may need less.

    Evaluations, relative to `hidden_states`:

        steps    50 slots     64     100     200    50 slots, one scan
          100       1.016  1.013   1.005   1.005    1.210
         1000       1.018  1.007   1.004   1.003    1.345
        10000       1.111  1.034   1.046   1.002    1.264

    The ratio is at most 1.13 for 50 or more slots and up to 10000 steps, and at most 1.20 near 30000 steps. Static
    scans fall behind because they free all checkpoints of a scan together, and because the segments of one level are
    equally long. They do badly below about 20 slots, since each level takes some.

    Args:
        steps: the length of the sequence.
        slots: the memory limit, in carries.
        sub_scans: the most consecutive scans. Each is compiled separately.
        internal_size: the residuals of one step, in carries and including its carry, for `Memory()`; compare with
            `mixed_states`. None: only carries are saved, for `Memory(recompute="all")`; compare with `hidden_states`.

    Returns:
        The schedule, with its exact `evaluations` and `slots`. `Memory.segment` takes it.

    Raises:
        ValueError: if `steps` is negative, another number is below 1, or the slots are too few.

    Example:
        >>> from rnnscan import checkpointing
        >>> plan = checkpointing.nested(1000, slots=64, sub_scans=1)
        >>> plan.sub_scans[0].segment, plan.evaluations, plan.slots
        ((36,), 3000, 63)
        >>> checkpointing.nested(1000, slots=50).evaluations, checkpointing.binomial(1000, slots=50)
        (3000, 2948)
    """
    size = 1 if internal_size is None else internal_size
    check("nested", steps=steps, slots=slots, sub_scans=sub_scans, internal_size=size)
    if not steps:
        return NestedScan((), internal_size)
    planner = _Planner(steps, min(slots, steps * size), size)
    # A level needs at least two segments to pay, so two slots.
    for levels in range(slots // 2 + 1):
        planned = planner.plan(levels, sub_scans)
        if planned:
            return NestedScan(planned, internal_size)
    raise ValueError(
        f"nested: {steps} steps must fit into nested segments; got slots={slots}, sub_scans={sub_scans} and "
        f"internal_size={internal_size}, which are too few at any depth. Give more slots."
    )


class _Planner:
    """The search of `nested`: which slots hold the checkpoints of which scan.

    `longest[d][b]` is the most steps that d levels of equal segments run with b slots:

        longest[0][b] = b / size
        longest[d][b] = max over n of  n longest[d - 1][b - n]

    and `checkpoints[d][b]` is that n. If earlier scans hold h slots, the next scan with n checkpoints covers
    n longest[d - 1][slots - h - n] steps. Dynamic programming finds the most steps for every h, from both ends.
    """

    def __init__(self, steps: int, slots: int, size: int) -> None:
        self.steps, self.slots, self.size = steps, slots, size
        self.held = np.arange(slots + 1, dtype=np.int64)
        self.longest = [np.minimum(self.held // size, steps)]
        self.checkpoints = [np.zeros_like(self.held)]

    def plan(self, levels: int, sub_scans: int) -> tuple[SubScan, ...]:
        """The scans with the fewest evaluations whose first ones have `levels` levels; empty if they do not fit."""
        while len(self.longest) < levels:
            self._add_level()
        front = self._from_front(levels, sub_scans)
        back = self._from_end(levels - 1, sub_scans - 1 if levels else 0)
        fewest, best = -1, None
        for last in range(len(back)):
            for first in range(1, sub_scans - last + 1):
                enough = np.flatnonzero(front[first][0] + back[last][0] >= self.steps)
                # Fewer checkpoints in front leave more steps to the later scans, which have one level less.
                if len(enough) and back[last][0][enough[0]] > fewest:
                    fewest, best = back[last][0][enough[0]], (first, last, int(enough[0]))
        if best is None:
            return ()
        first, last, middle = best
        return self._build(levels, _path(front, first, middle)[::-1], _path(back, last, middle))

    def _add_level(self) -> None:
        below = self.longest[-1]
        products = [self.held[: budget + 1] * below[budget::-1] for budget in self.held]
        self.checkpoints.append(np.array([product.argmax() for product in products]))
        self.longest.append(np.minimum([product.max() for product in products], self.steps))

    def _covers(self, levels: int, before: Any, after: Any) -> Any:
        """Steps of a scan whose checkpoints take the slots from `before` to `after`."""
        if not levels:
            return (after - before) // self.size
        return (after - before) * self.longest[levels - 1][self.slots - after]

    def _from_front(self, levels: int, sub_scans: int) -> list[tuple[Integers, Integers]]:
        """By number of scans and of slots held after them: their steps, and the slots held before the last scan."""
        steps = np.where(self.held == 0, 0, _IMPOSSIBLE)
        tables = [(steps, self.held)]
        for _ in range(sub_scans):
            totals = [steps[: h + 1] + self._covers(levels, self.held[: h + 1], h) for h in self.held]
            steps = np.array([total.max() for total in totals])
            tables.append((steps, np.array([total.argmax() for total in totals])))
        return tables

    def _from_end(self, levels: int, sub_scans: int) -> list[tuple[Integers, Integers]]:
        """By number of scans and of slots held before them: their steps, and the slots held after the first scan."""
        steps = np.zeros_like(self.held)
        tables = [(steps, self.held)]
        for _ in range(sub_scans):
            totals = [steps[h:] + self._covers(levels, h, self.held[h:]) for h in self.held]
            steps = np.array([total.max() for total in totals])
            tables.append((steps, self.held + np.array([total.argmax() for total in totals])))
        return tables

    def _build(self, levels: int, front: list[int], back: list[int]) -> tuple[SubScan, ...]:
        """The scans between these numbers of held slots. The last ones are made as long as possible."""
        cuts = [(levels, *cut) for cut in pairwise(front)]
        cuts += [(levels - 1, *cut) for cut in pairwise(back)]
        left, sizes = self.steps, {}
        for cut in reversed(cuts):
            sizes[cut] = min(left, int(self._covers(*cut)))
            left -= sizes[cut]
        return tuple(self._sub_scan(steps, *cut) for cut in cuts if (steps := sizes[cut]))

    def _sub_scan(self, steps: int, levels: int, before: int, after: int) -> SubScan:
        if not levels:
            return SubScan(steps, None)
        budget = self.slots - after
        segment = [-(-steps // (after - before))]
        for level in range(levels - 1, 0, -1):
            count = int(self.checkpoints[level][budget])
            budget -= count
            length = -(-segment[-1] // count)
            if length < segment[-1]:
                segment.append(length)
        return SubScan(steps, tuple(segment))


def _path(tables: list[tuple[Integers, Integers]], sub_scans: int, held: int) -> list[int]:
    """The numbers of held slots between the scans, followed back through the tables."""
    path = [held]
    for _, choice in tables[sub_scans:0:-1]:
        path.append(int(choice[path[-1]]))
    return path
