"""A compiled row, and the measurements of a workload's rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.others import TOO_MUCH


@dataclass(frozen=True)
class Runner:
    """A compiled row.

    Attributes:
        forward: computes the loss, and waits for it.
        train: computes the loss and all gradients, and waits for them.
        kept: bytes kept for the backward pass; None if unknown.
        kept_without_params: the same without parameters.
        temporary: bytes that the training step needs besides arguments and results; None if unknown.
        compile_seconds: the time to trace and compile the training step; None if it is not compiled.
    """

    forward: Callable[[], Any]
    train: Callable[[], Any]
    kept: int | None = None
    kept_without_params: int | None = None
    temporary: int | None = None
    compile_seconds: float | None = None


@dataclass
class Result:
    """The measurements of one workload.

    Attributes:
        runners: by row.
        forward: seconds of each round, by row.
        train: seconds of each round, by row.
        absent: missing rows, each with the reason.
        others: the share of the processors that other programs took; None if unknown.
    """

    runners: dict[str, Runner]
    forward: dict[str, list[float]] = field(default_factory=dict)
    train: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    others: float | None = None

    @property
    def busy(self) -> bool:
        """Whether other programs took too much for reliable times."""
        return self.others is not None and self.others > TOO_MUCH

    def forward_ratio(self, row: str, other: str = "plain") -> float:
        """The median over the rounds of the ratio of two rows' forward times in a round."""
        return _median_ratio(self.forward[row], self.forward[other])

    def train_ratio(self, row: str, other: str = "plain") -> float:
        """The same for the training step: loss and gradients."""
        return _median_ratio(self.train[row], self.train[other])

    def fastest_train_ratio(self, row: str, other: str = "plain") -> float:
        """The ratio of two rows' fastest training steps."""
        return min(self.train[row]) / min(self.train[other])

    def train_milliseconds(self, row: str) -> float:
        """The median time of the training step."""
        return 1000 * median(self.train[row])

    def kept_ratio(self, row: str, other: str = "plain") -> float | None:
        """The ratio of two rows' kept bytes."""
        return _ratio(self.runners[row].kept, self.runners[other].kept)

    def kept_without_params_ratio(self, row: str, other: str = "plain") -> float | None:
        """The same without parameters, which the caller keeps anyway."""
        return _ratio(self.runners[row].kept_without_params, self.runners[other].kept_without_params)

    def temporary_ratio(self, row: str, other: str = "plain") -> float | None:
        """The ratio of two rows' peak temporary bytes."""
        return _ratio(self.runners[row].temporary, self.runners[other].temporary)

    def compile_ratio(self, row: str, other: str = "plain") -> float | None:
        """The ratio of two rows' times to trace and compile."""
        return _ratio(self.runners[row].compile_seconds, self.runners[other].compile_seconds)


def _median_ratio(own: list[float], others: list[float]) -> float:
    return median(mine / other for mine, other in zip(own, others, strict=True))


def _ratio(own: float | None, other: float | None) -> float | None:
    return None if own is None or not other else own / other
