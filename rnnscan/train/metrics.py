"""Metrics: a line of JSON for each step, and event files for TensorBoard."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias


Number: TypeAlias = float | int
Metrics: TypeAlias = Mapping[str, Number | None]


def append_line(file: Path, step: int, metrics: Metrics) -> None:
    """Write one step's metrics; JSON has no infinity and no NaN, so they become null. Steps count from 1."""
    line = {"step": step} | {name: _finite(value) for name, value in metrics.items()} | {"step": step}
    with file.open("a") as opened:
        opened.write(json.dumps(line, allow_nan=False) + "\n")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The metrics of all steps, with their numbers as `"step"`. A last line that a kill has cut is dropped."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def cut_back(file: Path, step: int) -> None:
    """Drop the metrics after a step, atomically."""
    if file.is_file():
        shortened = file.with_suffix(".new")
        shortened.write_text("".join(json.dumps(line) + "\n" for line in read_lines(file) if line["step"] <= step))
        os.replace(shortened, file)


def check_tensorboard() -> None:
    """Raise an ImportError if the extra for TensorBoard is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"RunDirectory: with tensorboard=True the extra 'tensorboard' must be installed; got no module "
            f'{error.name!r}. Run pip install ".[tensorboard]" in the checkout of rnnscan.',
            name=error.name,
        ) from error


@contextmanager
def tensorboard_writer(folder: Path, lines: list[dict[str, Any]]) -> Iterator[Callable[[int, Metrics], None]]:
    """Write event files for TensorBoard.

    They are rewritten from the lines of JSON, so a resumed run has every step exactly once.

    Args:
        folder: the folder, which is replaced.
        lines: the metrics so far, from `read_lines`.

    Yields:
        A function that writes one step's metrics.
    """
    from tensorboardX import SummaryWriter

    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as writer:

        def log(step: int, metrics: Metrics) -> None:
            for name, value in metrics.items():
                if _finite(value) is not None:
                    writer.add_scalar(name, value, step)

        for line in lines:
            log(line["step"], {name: value for name, value in line.items() if name != "step"})
        yield log


def _finite(value: Number | None) -> Number | None:
    return value if value is not None and isfinite(value) else None
