"""The rows of each workload on a platform, and their file."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accelerators.figures import Figures, read_figures


NOT_COMPILED = "not compiled"


@dataclass
class Row:
    """The two programs of a row; an error in place of one that does not compile.

    Attributes:
        forward: the loss.
        trained: the loss and its gradients.
        measured: seconds of a training step on the device, where there is one.
    """

    forward: Figures | str
    trained: Figures | str
    measured: float | None = None


@dataclass
class Tables:
    """The rows of each workload on a platform.

    Attributes:
        versions: of jax and of the compilers.
        rows: workload -> row -> figures.
        without: the same for training steps that take long to compile, without the choices that make them so.
    """

    versions: str
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    without: dict[str, dict[str, Figures]] = field(default_factory=dict)

    @property
    def is_incomplete(self) -> bool:
        """Whether a program has not been compiled."""
        return any(
            NOT_COMPILED in (both.forward, both.trained) for rows in self.rows.values() for both in rows.values()
        )

    @property
    def trained(self) -> dict[str, dict[str, Figures]]:
        """The figures of the training steps that compile."""
        return {
            name: {row: both.trained for row, both in rows.items() if isinstance(both.trained, Figures)}
            for name, rows in self.rows.items()
        }

    @property
    def forward(self) -> dict[str, dict[str, Figures]]:
        """The figures of the forward passes that compile."""
        return {
            name: {row: both.forward for row, both in rows.items() if isinstance(both.forward, Figures)}
            for name, rows in self.rows.items()
        }

    def write(self, path: Path) -> None:
        """Write them as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    @staticmethod
    def read(path: Path) -> "Tables":
        """Read what `write` wrote."""
        values = json.loads(path.read_text())
        rows = {name: {row: _read_row(both) for row, both in of.items()} for name, of in values["rows"].items()}
        without = {name: {row: read_figures(one) for row, one in of.items()} for name, of in values["without"].items()}
        return Tables(values["versions"], rows, without)


def _read_row(values: dict[str, Any]) -> Row:
    both = [one if isinstance(one, str) else read_figures(one) for one in (values["forward"], values["trained"])]
    return Row(*both, values["measured"])
