"""The times that `rs.explain` estimates for the uses of `python -m benchmarks.beyond`, beside measured ones."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any

import jax

import rnnscan as rs
from benchmarks.beyond.use import Problem
from benchmarks.beyond.uses import USES


HEADINGS = ("use", "forward", "estimated", "ratio", "training", "estimated", "ratio")


@dataclass(frozen=True)
class Times:
    """The seconds of a use, for all of its scans.

    Attributes:
        forward: the measured seconds of the loss.
        training: the measured seconds of the loss and its gradient.
        estimated_forward: the estimate for the scans in the loss; None if there is none.
        estimated_training: the same with the backward passes.
    """

    forward: float
    training: float
    estimated_forward: float | None
    estimated_training: float | None

    @property
    def ratios(self) -> list[float | None]:
        """Estimated / measured, forward and training."""
        return [
            None if estimate is None else estimate / measured
            for estimate, measured in (
                (self.estimated_forward, self.forward),
                (self.estimated_training, self.training),
            )
        ]


def measure_use(problem: Problem, seconds: float) -> Times:
    """Measure a use, each function for so many seconds, of which the least time counts."""
    arguments = problem.split_arguments()
    loss = problem.loss(rs.scan)
    forward, backward = estimate(problem)
    return Times(
        forward=_least(jax.jit(loss), arguments, seconds),
        training=_least(jax.jit(jax.value_and_grad(loss)), arguments, seconds),
        estimated_forward=forward,
        estimated_training=None if forward is None or backward is None else forward + backward,
    )


def estimate(problem: Problem) -> tuple[float | None, float | None]:
    """The estimated seconds of all scans of a use, forward and backward; None where one of them has no estimate."""
    passes: list[dict[str, float]] = []

    def scan(cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        explanation = rs.explain(cell, params, carry, xs, **options)
        totals: dict[str, float] = {}
        for part in explanation.costs:
            totals[part.direction] = totals.get(part.direction, 0.0) + explanation.length * part.seconds
        passes.append(totals)
        return rs.scan(cell, params, carry, xs, **options)

    jax.eval_shape(problem.loss(scan), *problem.split_arguments())

    def total(direction: str) -> float | None:
        return sum(one[direction] for one in passes) if all(direction in one for one in passes) else None

    return total("forward"), total("backward")


def accuracy_rows(times: dict[str, Times]) -> Iterator[Sequence[str]]:
    """The rows of a table."""
    for name, one in times.items():
        forward, training = one.ratios
        yield (
            name,
            _milliseconds(one.forward),
            _milliseconds(one.estimated_forward),
            _ratio(forward),
            _milliseconds(one.training),
            _milliseconds(one.estimated_training),
            _ratio(training),
        )


def summary(times: Collection[Times]) -> Iterator[str]:
    """How far off the estimates are: the median and the worst factor, in either direction."""
    for index, title in enumerate(("forward", "training")):
        ratios = [ratio for ratio in (one.ratios[index] for one in times) if ratio is not None]
        factors = [exp(abs(log(ratio))) for ratio in ratios]
        if factors:
            yield (
                f"{title}: {len(factors)} uses, estimated / measured {median(ratios):.2f} in the median, "
                f"{min(ratios):.2f} to {max(ratios):.2f}; off by a factor of {median(factors):.2f} in the median, "
                f"{max(factors):.2f} at worst"
            )


def known_uses(names: str) -> list[str]:
    """The uses of a list with commas, or "all"."""
    chosen = list(USES) if names == "all" else names.split(",")
    unknown = [name for name in chosen if name not in USES]
    if unknown:
        raise SystemExit(f"--uses must be all, or some of {', '.join(USES)}; got {', '.join(unknown)}.")
    return chosen


def _least(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> float:
    jax.block_until_ready(function(*arguments))
    times: list[float] = []
    while sum(times) < seconds or not times:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3g} ms"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
