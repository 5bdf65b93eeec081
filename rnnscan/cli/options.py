"""What the commands share: the options of the model and its window, how they are read, and how errors look."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Console

from rnnscan.train import TrainConfig


class CellKind(StrEnum):
    """The cells to choose from."""

    LSTM = "lstm"
    GRU = "gru"
    RNN = "rnn"


def option(field: str, help: str, *, min: int | float | None = None) -> Any:
    """An option for a field of `TrainConfig`, whose value is None where it is not on the command line.

    A resumed run takes such an option from the run's beginning, and another run from the field's default.

    Args:
        field: its name.
        help: what it is.
        min: the least value.
    """
    return typer.Option(help=help, min=min, show_default=str(getattr(TrainConfig, field)))


Cell: TypeAlias = Annotated[CellKind | None, option("cell", "The recurrent cell.")]
Hidden: TypeAlias = Annotated[int | None, option("hidden", "Units in each layer.", min=1)]
Layers: TypeAlias = Annotated[int | None, option("layers", "Cells one above the other.", min=1)]
Embedding: TypeAlias = Annotated[int | None, option("embedding", "Size of a byte's vector.", min=1)]
Batch: TypeAlias = Annotated[int | None, option("batch", "Streams of text side by side.", min=1)]
Window: TypeAlias = Annotated[int | None, option("window", "Steps a gradient goes back in time.", min=1)]
Seed: TypeAlias = Annotated[int | None, option("seed", "Of everything that is random.", min=0)]


def config_of(options: Mapping[str, Any]) -> TrainConfig:
    """The options of a run that starts anew.

    Args:
        options: values by the names of `TrainConfig`'s fields; None: not on the command line.

    Returns:
        Them, and defaults for the others.

    Raises:
        ValueError: if a value cannot be.

    Example:
        >>> config_of({"hidden": 8, "layers": None}).hidden
        8
    """
    return TrainConfig(**{field: value for field, value in options.items() if value is not None})


@contextmanager
def readable_errors() -> Iterator[None]:
    """Show what the user can put right as one paragraph, and exit with 2.

    It goes around checks only: what is raised while computing is a bug, and shows its traceback.
    """
    try:
        yield
    except (ImportError, OSError, TypeError, ValueError) as error:
        Console(stderr=True).print(f"Error: {error}", markup=False, highlight=False)
        raise typer.Exit(2) from error


def parse_recompute(values: Sequence[str]) -> tuple[str, ...] | Literal["all"]:
    """The names in `--recompute a --recompute b,c`.

    Args:
        values: what was given, in order.

    Returns:
        The names, each once, or "all".

    Raises:
        ValueError: if "all" stands beside names.

    Example:
        >>> parse_recompute(["gates", "state, gates"])
        ('gates', 'state')
    """
    names = tuple(dict.fromkeys(name.strip() for value in values for name in value.split(",")))
    if "all" not in names:
        return names
    if len(names) > 1:
        raise ValueError(
            f"train: --recompute must be names, or `all` alone; got {', '.join(names)}. `all` has every name in it."
        )
    return "all"


def parse_segment(value: str) -> int | Literal["sqrt"] | tuple[int, ...]:
    """The segments in `--segment 32`, `--segment sqrt` or `--segment 64,8`.

    Args:
        value: what was given.

    Returns:
        `Memory.segment`.

    Raises:
        ValueError: if it is none of these.

    Example:
        >>> parse_segment("32"), parse_segment("64,8")
        (32, (64, 8))
    """
    if value == "sqrt":
        return "sqrt"
    try:
        steps = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ValueError(
            "train: --segment must be a number of steps, several from the longest to the shortest with commas "
            f"between, or sqrt; got {value!r}. Write --segment 32, --segment 64,8 or --segment sqrt."
        ) from None
    return steps[0] if len(steps) == 1 else steps
