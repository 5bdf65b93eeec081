"""Metrics: a line of JSON for each step, and event files for TensorBoard that are made of them."""

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
    """Write one step's metrics.

    Args:
        file: where to.
        step: the step's number, from 1.
        metrics: numbers by their names. What is infinite or not a number is written as null, which JSON knows.
    """
    line = {"step": step} | {name: _finite(value) for name, value in metrics.items()}
    with file.open("a") as opened:
        opened.write(json.dumps(line, allow_nan=False) + "\n")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The metrics of all steps that are written as a whole; a kill may have cut the last line.

    Args:
        file: where they are.

    Returns:
        A dictionary for each step, with its number as `"step"`; none where there is no file.
    """
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def cut_back(file: Path, step: int) -> None:
    """Drop the metrics of later steps, in one go.

    Args:
        file: where they are.
        step: the last step that stays.
    """
    if file.is_file():
        shortened = file.with_suffix(".new")
        shortened.write_text("".join(json.dumps(line) + "\n" for line in read_lines(file) if line["step"] <= step))
        os.replace(shortened, file)


def check_tensorboard() -> None:
    """Refuse to write for TensorBoard where its extra is not installed.

    Raises:
        ImportError: if it is not.
    """
    try:
        import tensorboardX  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"RunDirectory: with tensorboard=True the extra 'tensorboard' must be installed; got no module "
            f'{error.name!r}. Install it with the extra: pip install ".[tensorboard]" in the checkout of rnnscan.'
        ) from error


@contextmanager
def tensorboard_writer(folder: Path, lines: list[dict[str, Any]]) -> Iterator[Callable[[int, Metrics], None]]:
    """Write event files for TensorBoard.

    They are written anew from the lines of JSON: what a run that was killed had not written yet is there then, and
    what a run that goes on does again is there once.

    Args:
        folder: where to; what is there is replaced.
        lines: the metrics so far, as `read_lines` gives them.

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
