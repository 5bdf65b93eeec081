"""Schedules of static nested scans: what `rnnscan.scan` can do, and the best of it."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rnnscan.checkpointing.optimum import Integers, check


_IMPOSSIBLE = np.iinfo(np.int64).min // 4


@dataclass(frozen=True)
class SubScan:
    """Steps of a sequence that are one scan.

    Attributes:
        steps: their number.
        segment: the lengths of its nested segments, as `Memory.segment` takes them; None: it has none.
    """

    steps: int
    segment: tuple[int, ...] | None


@dataclass(frozen=True)
class NestedScan:
    """A schedule of static loops: scans one after the other, each over nested segments.

    Each level of segments runs every step once more, and so does the step itself where its intermediates are not kept.
    A scan of t steps with d levels of segments takes at most

        (d + 2) t evaluations with Memory(recompute="all"),   (d + 1) t where all that is named is kept.

    It is less where the last segment within a segment is shorter, or the only one: a segment runs again to have the
    starts in it, and what follows the last start is then left out, unless it is a trip of the same loop as the others.
    `evaluations` is exact about that: it is what XLA runs, with either engine. The `"fission"` engine runs the taped
    evaluations of a chunk of steps at once, and so takes the memory of some more carries than `slots` says; the
    `"lax"` engine takes that of two more, the new carry and the cotangent.

    While the innermost segment, of k steps, of a scan of n segments has its backward pass, there are held

        n + ... + k carries, and the starts of the scans before,

    and they are freed scan by scan. Therefore several scans can do with less than one: the later ones, whose backward
    passes come first, have shorter segments, so that they fit in beside the starts of all.

    Attributes:
        sub_scans: the scans, in the order in which the steps run.
        internal_size: what each step of an innermost segment holds, in carries, where all that is named is kept
            (`Memory()`); None: its carry (`Memory(recompute="all")`).

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
        """How often the cell runs forward, in all, the first time included."""
        taped = self.internal_size is None
        return self.steps + sum(
            _run_again(sub_scan.steps, sub_scan.segment or (), taped) for sub_scan in self.sub_scans
        )

    @property
    def slots(self) -> int:
        """The most carries that are held at once, those between the steps of the innermost segment included."""
        size = 1 if self.internal_size is None else self.internal_size
        held, most = 0, 0
        for sub_scan in self.sub_scans:
            most = max(most, held + _held(sub_scan.steps, sub_scan.segment or (), size))
            held += -(-sub_scan.steps // sub_scan.segment[0]) if sub_scan.segment else sub_scan.steps * size
        return most


def _run_again(steps: int, segments: tuple[int, ...], taped: bool) -> int:
    """Evaluations on the backward pass of a scan whose outermost starts are held."""
    if not segments:
        return steps if taped else 0
    count, rest = divmod(steps, segments[0])
    lengths = {segments[0]: count, rest: 1 if rest else 0}
    return sum(
        times * (_second_run(length, segments[1:], taped) + _run_again(length, segments[1:], taped))
        for length, times in lengths.items()
    )


def _second_run(steps: int, segments: tuple[int, ...], taped: bool) -> int:
    """Evaluations to have the outermost starts of a segment; or, without segments in it, its steps.

    XLA makes no loop of one trip, and leaves out what nothing reads; it can leave out no trip of a loop.
    """
    if not segments:
        return 0 if taped and steps == 1 else steps
    count, rest = divmod(steps, segments[0])
    if rest:
        return count * segments[0]
    return steps if count > 1 else 0


def _held(steps: int, segments: tuple[int, ...], size: int) -> int:
    """Slots of one scan: the starts of its segments, and those of the segment that has its backward pass."""
    if not segments:
        return steps * size
    count, rest = divmod(steps, segments[0])
    whole = count + _held(segments[0], segments[1:], size) if count else 0
    shorter = count + 1 + _held(rest, segments[1:], size) if rest else 0
    return max(whole, shorter)


def nested(steps: int, slots: int, *, sub_scans: int = 4, internal_size: int | None = None) -> NestedScan:
    """Static nested scans for so many slots, with few evaluations.

    The search is over at most `sub_scans` scans one after the other. The first have d levels of segments and the
    others d - 1, with the least d that the slots allow, and as many steps as they allow in the others. It takes every
    segment for as long as the first, so where the last is shorter the plan may need less than was counted.

    Its evaluations, divided by those of `hidden_states`:

        steps    50 slots     64     100     200    50 slots, one scan
          100       1.016  1.013   1.005   1.005    1.210
         1000       1.018  1.007   1.004   1.003    1.345
        10000       1.111  1.034   1.046   1.002    1.264

    With 50 slots or more and up to 10000 steps it is at most 1.13, and near 30000 steps up to 1.20. What is missing is
    that the starts of a scan are freed together, and that the segments within a segment are all alike. Fewer slots
    than about 20 are not what static scans are good at: the starts of every level take some.

    Args:
        steps: the length of the sequence.
        slots: the most memory, in carries.
        sub_scans: the most scans one after the other. Each is compiled on its own.
        internal_size: what a step of the innermost segment takes, in carries, where all that is named is kept
            (`Memory()`; the carry is part of it), to compare with `mixed_states`; None: only carries are kept
            (`Memory(recompute="all")`), to compare with `hidden_states`.

    Returns:
        The schedule, with its exact `evaluations` and the `slots` that it needs; a value of `Memory.segment`.

    Raises:
        ValueError: if `steps` is negative, another number is not at least 1, or so few slots are not enough.

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
    # A level pays only with two segments or more, whose starts are two slots.
    for levels in range(slots // 2 + 1):
        planned = planner.plan(levels, sub_scans)
        if planned:
            return NestedScan(planned, internal_size)
    raise ValueError(
        f"nested: {steps} steps must fit into nested segments; got slots={slots}, sub_scans={sub_scans} and "
        f"internal_size={internal_size}, which are too few at any depth. Give more slots."
    )


class _Planner:
    """The search of `nested`: which slots hold the starts of which scan.

    `longest[d][b]` is the most steps that d levels of segments, all alike, run with b slots:

        longest[0][b] = b / size
        longest[d][b] = max over n of  n longest[d - 1][b - n]

    and `starts[d][b]` is that n. After scans whose starts hold h slots, the next scan with n starts covers
    n longest[d - 1][slots - h - n] steps. The most that some scans cover is found for every h, from the front and
    from the end.
    """

    def __init__(self, steps: int, slots: int, size: int) -> None:
        self.steps, self.slots, self.size = steps, slots, size
        self.held = np.arange(slots + 1, dtype=np.int64)
        self.longest = [np.minimum(self.held // size, steps)]
        self.starts = [np.zeros_like(self.held)]

    def plan(self, levels: int, sub_scans: int) -> tuple[SubScan, ...]:
        """The scans with the fewest evaluations, of which the first have so many levels; none if that is too few."""
        while len(self.longest) < levels:
            self._add_level()
        front = self._from_front(levels, sub_scans)
        back = self._from_end(levels - 1, sub_scans - 1 if levels else 0)
        fewest, best = -1, None
        for last in range(len(back)):
            for first in range(1, sub_scans - last + 1):
                enough = np.flatnonzero(front[first][0] + back[last][0] >= self.steps)
                # Fewer starts in front leave more to the scans behind, which have a level less.
                if len(enough) and back[last][0][enough[0]] > fewest:
                    fewest, best = back[last][0][enough[0]], (first, last, int(enough[0]))
        if best is None:
            return ()
        first, last, middle = best
        return self._build(levels, _path(front, first, middle)[::-1], _path(back, last, middle))

    def _add_level(self) -> None:
        below = self.longest[-1]
        products = [self.held[: budget + 1] * below[budget::-1] for budget in self.held]
        self.starts.append(np.array([product.argmax() for product in products]))
        self.longest.append(np.minimum([product.max() for product in products], self.steps))

    def _covers(self, levels: int, before: Any, after: Any) -> Any:
        """Steps of a scan whose starts are the slots from `before` to `after`."""
        if not levels:
            return (after - before) // self.size
        return (after - before) * self.longest[levels - 1][self.slots - after]

    def _from_front(self, levels: int, sub_scans: int) -> list[tuple[Integers, Integers]]:
        """For each number of scans and of slots held behind them: the steps, and the slots held before the last."""
        steps = np.where(self.held == 0, 0, _IMPOSSIBLE)
        tables = [(steps, self.held)]
        for _ in range(sub_scans):
            totals = [steps[: h + 1] + self._covers(levels, self.held[: h + 1], h) for h in self.held]
            steps = np.array([total.max() for total in totals])
            tables.append((steps, np.array([total.argmax() for total in totals])))
        return tables

    def _from_end(self, levels: int, sub_scans: int) -> list[tuple[Integers, Integers]]:
        """For each number of scans and of slots held before them: the steps, and the slots held behind the first."""
        steps = np.zeros_like(self.held)
        tables = [(steps, self.held)]
        for _ in range(sub_scans):
            totals = [steps[h:] + self._covers(levels, h, self.held[h:]) for h in self.held]
            steps = np.array([total.max() for total in totals])
            tables.append((steps, self.held + np.array([total.argmax() for total in totals])))
        return tables

    def _build(self, levels: int, front: list[int], back: list[int]) -> tuple[SubScan, ...]:
        """The scans between these numbers of held slots, each as long as it can be, from the end."""
        cuts = [(levels, *cut) for cut in pairwise(front)]
        cuts += [(levels - 1, *cut) for cut in pairwise(back)]
        left, sizes = self.steps, {}
        for cut in reversed(cuts):
            sizes[cut] = min(left, int(self._covers(*cut)))
            left -= sizes[cut]
        return tuple(self._part(steps, *cut) for cut in cuts if (steps := sizes[cut]))

    def _part(self, steps: int, levels: int, before: int, after: int) -> SubScan:
        if not levels:
            return SubScan(steps, None)
        budget = self.slots - after
        segment = [-(-steps // (after - before))]
        for level in range(levels - 1, 0, -1):
            starts = int(self.starts[level][budget])
            budget -= starts
            length = -(-segment[-1] // starts)
            if length < segment[-1]:
                segment.append(length)
        return SubScan(steps, tuple(segment))


def _path(tables: list[tuple[Integers, Integers]], sub_scans: int, held: int) -> list[int]:
    """The numbers of held slots on either side of each of so many scans, as the tables chose them."""
    path = [held]
    for _, choice in tables[sub_scans:0:-1]:
        path.append(int(choice[path[-1]]))
    return path
