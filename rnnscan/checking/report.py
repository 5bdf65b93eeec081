"""The report of `check`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rnnscan._util.messages import listing, nearest
from rnnscan._util.reports import Report, Table


Result = Literal["holds", "does not hold", "does not apply"]

_STYLES = {"does not hold": "bold red", "does not apply": "dim"}
_FILLS = {"holds": "#2ca02c", "does not hold": "#d62728", "does not apply": "#7f7f7f"}
_LEGEND = {
    "holds": "no counterexample among random inputs",
    "does not hold": "a counterexample, the smallest that was found",
    "does not apply": "nothing to check, with the reason",
}


class CheckError(AssertionError):
    """A model is not what it claims. `CheckReport.raise_if_failed` raises it."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check.

    Attributes:
        name: the check's name.
        result: "holds", "does not hold" or "does not apply".
        detail: the largest difference, the smallest input that shows a fault, or the reason.
    """

    name: str
    result: Result
    detail: str


@dataclass(frozen=True)
class CheckReport(Report):
    """What `check` found. Print it, or show it in a notebook. `report["future"]` is the outcome of one check.

    Attributes:
        model: the model, in words.
        setting: the sizes and the dtype of the inputs.
        outcomes: one `Outcome` for each check, in the order of the checks.
    """

    model: str
    setting: str
    outcomes: tuple[Outcome, ...]

    def __getitem__(self, name: str) -> Outcome:
        """The outcome of a check, by its name."""
        by_name = {outcome.name: outcome for outcome in self.outcomes}
        if name not in by_name:
            raise KeyError(f"The report has the checks {listing(by_name)}; got {name!r}.{nearest(name, by_name)}")
        return by_name[name]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that do not hold."""
        return tuple(outcome.name for outcome in self.outcomes if outcome.result == "does not hold")

    def raise_if_failed(self) -> None:
        """Raise an error that shows each failed check and the smallest input, for tests.

        Raises:
            CheckError: an AssertionError, if a check does not hold.
        """
        if not self.ok:
            failed = (outcome for outcome in self.outcomes if outcome.result == "does not hold")
            lines = "\n".join(f"  {outcome.name}: {outcome.detail}" for outcome in failed)
            raise CheckError(f"check: {self.model} is not what it claims.\n{lines}")

    def _blocks(self) -> Iterator[str | Table]:
        counts = {result: sum(outcome.result == result for outcome in self.outcomes) for result in _FILLS}
        shown = ", ".join(f"{count} {result if count == 1 else _PLURALS[result]}" for result, count in counts.items())
        yield f"{self.model}: {shown}\n{self.setting}"
        rows = [(outcome.name, outcome.result, outcome.detail) for outcome in self.outcomes]
        yield Table(("check", "result", "detail"), [rows], 3, _STYLES, _FILLS, _LEGEND, wrapped_columns=(2,))


_PLURALS = {"holds": "hold", "does not hold": "do not hold", "does not apply": "do not apply"}
