"""What a check is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rnnscan.checking.compare import Finding
from rnnscan.checking.trial import Size, Trial


_ONE_STEP = Size(1, 1)

# One part of a check, at a size.
Part: TypeAlias = Callable[[Trial, Size], Finding]


class DoesNotApplyError(Exception):
    """A part has nothing to check. Its text is the reason."""


@dataclass(frozen=True)
class Check:
    """One check of a model.

    Attributes:
        name: its name.
        claim: what it checks, in a sentence.
        reason: why it does not apply to a model; None if it does.
        parts: its parts by name, in the order in which they run.
        least: the smallest size that can show a fault.
        measure: how the largest number of its findings is told.
        is_long: whether it runs all steps of the trial. A fault of the others shows in few.
    """

    name: str
    claim: str
    reason: Callable[[Trial], str | None]
    parts: Callable[[Trial], Iterator[tuple[str, Part]]]
    least: Size = _ONE_STEP
    measure: str = "largest difference {:.1g}"
    is_long: bool = True


def parts(**named: Part) -> Callable[[Trial], Iterator[tuple[str, Part]]]:
    """The parts of a check that are the same for every model."""
    return lambda trial: iter(named.items())


def always(trial: Trial) -> None:
    """The reason of a check that applies to every model."""


def needs(*options: str) -> Callable[[Trial], str | None]:
    """The reason of a check that needs options of a run."""
    return lambda trial: next(filter(None, map(trial.model.lacks, options)), None)
