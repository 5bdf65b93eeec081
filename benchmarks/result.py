"""A row that is ready to run, and what was measured of a workload's rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.others import TOO_MUCH


@dataclass(frozen=True)
class Runner:
    """A row that is ready to run.

    Attributes:
        forward: computes the loss, and waits for it.
        train: computes the loss and all gradients, and waits for them.
        kept: bytes between the forward and the backward pass; None where they cannot be counted.
        kept_beside_params: the same without those that are parameters themselves.
        temporary: bytes that the training step needs beside arguments and results; None where that is not known.
        compile_seconds: to trace and compile the training step; None where nothing is compiled.
    """

    forward: Callable[[], Any]
    train: Callable[[], Any]
    kept: int | None = None
    kept_beside_params: int | None = None
    temporary: int | None = None
    compile_seconds: float | None = None


@dataclass
class Result:
    """What was measured of one workload.

    Attributes:
        runners: by row.
        forward: seconds of each round, by row.
        train: seconds of each round, by row.
        absent: rows that should have been there, with the reason why they are not.
        others: the share of the processors that other programs took meanwhile; None where that is not known.
    """

    runners: dict[str, Runner]
    forward: dict[str, list[float]] = field(default_factory=dict)
    train: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    others: float | None = None

    @property
    def busy(self) -> bool:
        """Whether other programs took so much that times say little."""
        return self.others is not None and self.others > TOO_MUCH

    def forward_ratio(self, row: str, other: str = "plain") -> float:
        """The median over the rounds of a row's forward time by another's in the same round."""
        return _median_ratio(self.forward[row], self.forward[other])

    def train_ratio(self, row: str, other: str = "plain") -> float:
        """The same of the training step: loss and gradients."""
        return _median_ratio(self.train[row], self.train[other])

    def fastest_train_ratio(self, row: str, other: str = "plain") -> float:
        """A row's fastest training step by another's."""
        return min(self.train[row]) / min(self.train[other])

    def train_milliseconds(self, row: str) -> float:
        """The median time of the training step."""
        return 1000 * median(self.train[row])

    def kept_ratio(self, row: str, other: str = "plain") -> float | None:
        """A row's kept bytes by another's."""
        return _ratio(self.runners[row].kept, self.runners[other].kept)

    def kept_beside_params_ratio(self, row: str, other: str = "plain") -> float | None:
        """The same without parameters, which the caller holds anyway."""
        return _ratio(self.runners[row].kept_beside_params, self.runners[other].kept_beside_params)

    def temporary_ratio(self, row: str, other: str = "plain") -> float | None:
        """A row's peak temporary bytes by another's."""
        return _ratio(self.runners[row].temporary, self.runners[other].temporary)

    def compile_ratio(self, row: str, other: str = "plain") -> float | None:
        """A row's time to trace and compile by another's."""
        return _ratio(self.runners[row].compile_seconds, self.runners[other].compile_seconds)


def _median_ratio(own: list[float], others: list[float]) -> float:
    return median(mine / other for mine, other in zip(own, others, strict=True))


def _ratio(own: float | None, other: float | None) -> float | None:
    return None if own is None or not other else own / other
