"""Draw cases: the same for a seed on every machine, and within bounds."""

import math
import random
from collections.abc import Iterator

from benchmarks.beyond.use import Range
from benchmarks.sweep.case import NAMES, Case, size_ranges
from benchmarks.sweep.estimate import estimate


# The bounds of a training step by plain autodiff, as `estimate` sees it. A shorter step times the call, not the scan.
LEAST_SECONDS, MOST_SECONDS, MOST_BYTES = 0.001, 0.12, 256 * 2**20
TRIES = 10_000


def draw_cases(seed: int, uses: int) -> Iterator[Case]:
    """Cases of different uses; when all have been drawn, they are drawn once more, at other sizes."""
    order, number = random.Random(f"{seed}"), 0
    while uses > 0:
        names = list(NAMES)
        order.shuffle(names)
        for name in names[:uses]:
            yield draw_case(name, seed, number)
        uses, number = uses - len(names), number + 1


def draw_case(name: str, seed: int, number: int = 0) -> Case:
    """A use at random sizes, which do not depend on the other uses that are drawn.

    Args:
        name: the use.
        seed: the seed.
        number: how often the use was drawn before.
    """
    # Seeded by a string: Python hashes it the same way everywhere.
    source = random.Random(f"{seed} {name} {number}")
    for _ in range(TRIES):
        case = Case(name, {size: _draw_size(source, bounds) for size, bounds in size_ranges(name).items()})
        if is_bounded(case):
            return case
    raise ValueError(f"sweep: {name}: no sizes within the bounds in {TRIES:,} tries. Narrow its `ranges`.")


def is_bounded(case: Case) -> bool:
    """Whether the estimated time and memory are within the bounds."""
    needs = estimate(case)
    return LEAST_SECONDS <= needs.seconds <= MOST_SECONDS and needs.bytes <= MOST_BYTES


def _draw_size(source: random.Random, bounds: Range) -> int:
    """Uniform in its logarithm. Half of the sizes are powers of two, as many of a user's are."""
    low, high = bounds
    exponent = source.uniform(math.log2(low), math.log2(high))
    if source.random() < 0.5:
        exponent = round(exponent)
    return min(max(round(2**exponent), low), high)
