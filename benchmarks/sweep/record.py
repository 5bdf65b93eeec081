"""A file of measurements, from which a run that was stopped goes on."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.sweep.case import Case
from benchmarks.sweep.outcome import Figure, Outcome


class Record:
    """Outcomes by version and case, one a line of a file; None: they are not written."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._outcomes: list[tuple[str, Outcome]] = []
        if file is not None and file.exists():
            self._outcomes = [_read(line) for line in file.read_text().splitlines()]

    def get(self, version: str, case: Case) -> Outcome | None:
        """The outcome of a case, if it was measured."""
        return next((one for name, one in self._outcomes if name == version and one.case == case), None)

    def faster(self, case: Case) -> str:
        """Which one of plain and checkpoint was faster in the first measurement of a case; empty if there is none.

        Where they take the same time, versions would be compared with the bytes of different programs.
        """
        return next((one.faster for _, one in self._outcomes if one.case == case and one.faster), "")

    def add(self, version: str, outcome: Outcome) -> None:
        """Add an outcome."""
        self._outcomes.append((version, outcome))
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps({"version": version, **asdict(outcome)}) + "\n")


def _read(line: str) -> tuple[str, Outcome]:
    values = json.loads(line)
    version, case = values.pop("version"), Case(**values.pop("case"))
    figures = {what: Figure(**figure) for what, figure in values.pop("figures").items()}
    return version, Outcome(case, figures=figures, **values)
