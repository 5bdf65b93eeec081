"""The measurements of a case, as they travel between processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.sweep.case import Case


# A figure above it is measured again, and is a miss if it is still above.
LIMIT = 1.10
WHAT = ("training", "forward", "temporary", "compile")
TIMES = frozenset(WHAT) - {"temporary"}


@dataclass(frozen=True)
class Figure:
    """A figure of rnnscan beside plain JAX.

    Attributes:
        first: the first measurement.
        again: the second one, if the first is above `LIMIT`.
    """

    first: float
    again: float | None = None

    @property
    def value(self) -> float:
        """The smaller measurement, which counts."""
        return self.first if self.again is None else min(self.first, self.again)


@dataclass(frozen=True)
class Outcome:
    """The measurements of a case with one version of rnnscan.

    Attributes:
        case: the case.
        faster: the faster one of "plain" and "checkpoint" in training; bytes and compile time are beside it.
        milliseconds: the time of its training step.
        figures: by name, of `WHAT`.
        causes: the causes of figures above `LIMIT`, for training and forward time.
        others: the share of the processors that other programs took; None if unknown.
        error: why there are no figures.
        wrong: whether that is an error of rnnscan.
    """

    case: Case
    faster: str = ""
    milliseconds: float = 0.0
    figures: Mapping[str, Figure] = field(default_factory=dict)
    causes: Mapping[str, str] = field(default_factory=dict)
    others: float | None = None
    error: str = ""
    wrong: bool = False
