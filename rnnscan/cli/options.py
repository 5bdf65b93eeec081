"""Options that commands share, their parsers, and the display of errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

import jax
import numpy as np
import typer
from rich.console import Console

import rnnscan as rs
from rnnscan.insight import kept_bytes
from rnnscan.train import TrainConfig, join_processes, make_mesh, window_loss


class CellKind(StrEnum):
    """The cells to choose from."""

    LSTM = "lstm"
    GRU = "gru"
    RNN = "rnn"


def option(field: str, help: str, *, min: int | float | None = None) -> Any:
    """An option for a field of `TrainConfig`; None if it is not on the command line.

    None means the saved value in a resumed run, and the field's default in a new one.
    """
    # Typer puts a default that is not the parameter's own in parentheses.
    help = rf"{help} [dim]\[default: {getattr(TrainConfig, field)}][/dim]"
    return typer.Option(help=help, min=min, show_default=False)


Cell: TypeAlias = Annotated[CellKind | None, option("cell", "The recurrent cell.")]
Hidden: TypeAlias = Annotated[int | None, option("hidden", "Units in each layer.", min=1)]
Layers: TypeAlias = Annotated[int | None, option("layers", "Number of layers.", min=1)]
Embedding: TypeAlias = Annotated[int | None, option("embedding", "Size of a byte's embedding.", min=1)]
Batch: TypeAlias = Annotated[int | None, option("batch", "Number of text streams.", min=1)]
Window: TypeAlias = Annotated[int | None, option("window", "Time steps that a gradient goes back.", min=1)]
Seed: TypeAlias = Annotated[int | None, option("seed", "Random seed.", min=0)]
Recompute: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A named value to recompute, such as gates; or all.",
    ),
]
Segment: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="N|sqrt|A,B", help="Keep the carry only before every N-th time step; A,B nests."),
]
Mesh: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="data=N,model=M",
        help="Devices that share the text streams, and devices that share the hidden units.",
        show_default="one device",
    ),
]

Coordinator: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        help="Where the processes of a run meet: a free port of process 0. auto: where the cluster's environment says "
        "(Slurm, Open MPI, Kubernetes).",
        show_default="one process",
    ),
]
Processes: TypeAlias = Annotated[int | None, typer.Option(help="Number of processes.", min=1)]
ProcessId: TypeAlias = Annotated[int | None, typer.Option(help="Number of this process, from 0.", min=0)]
JoinTimeout: TypeAlias = Annotated[
    int, typer.Option(metavar="SECONDS", help="How long to wait until all processes have joined.", min=1)
]


def join(coordinator: str | None, processes: int | None, process_id: int | None, timeout: int) -> None:
    """Join the processes of `--coordinator`, if it is given.

    Raises:
        ValueError: if an option is missing or out of range.
    """
    if coordinator is not None:
        join_processes(None if coordinator == "auto" else coordinator, processes, process_id, timeout=timeout)
    elif processes is not None or process_id is not None:
        raise ValueError(
            "train: --processes and --process-id need --coordinator; got none. Pass HOST:PORT of process 0, or auto."
        )


def parse_mesh(text: str) -> jax.sharding.Mesh:
    """The mesh of `--mesh`.

    Raises:
        ValueError: if the text is not a list of axes and sizes, or the mesh cannot be made.

    Example:
        >>> dict(parse_mesh("data=1,model=1").shape)
        {'data': 1, 'model': 1}
    """
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(size.isdecimal() for _, _, size in pairs) or len({axis for axis, _, _ in pairs}) < len(pairs):
        raise ValueError(f"train: --mesh must be such as data=4,model=2, each axis once; got {text!r}.")
    return make_mesh({axis: int(size) for axis, _, size in pairs})


def config_of(options: Mapping[str, Any]) -> TrainConfig:
    """The options of a new run.

    Args:
        options: values by the names of `TrainConfig`'s fields; None: the default.

    Raises:
        ValueError: if a value is out of range.

    Example:
        >>> config_of({"hidden": 8, "layers": None}).hidden
        8
    """
    return TrainConfig(**{field: value for field, value in options.items() if value is not None})


@contextmanager
def readable_errors() -> Iterator[None]:
    """Show a user's error as one paragraph, and exit with 2.

    Use it around checks only: an error while computing is a bug and needs its traceback.
    """
    try:
        yield
    except (ImportError, OSError, TypeError, ValueError) as error:
        print_error(error)
        raise typer.Exit(2) from error


def print_error(error: Exception) -> None:
    """Show an error as one paragraph."""
    Console(stderr=True).print(f"Error: {error}", markup=False, highlight=False)


def print_warning(warning: Warning | str) -> None:
    """Show a warning as one paragraph."""
    Console(stderr=True).print(f"Warning: {warning}", markup=False, highlight=False)


def count_kept_bytes(config: TrainConfig, memory: rs.Memory | None) -> int:
    """The bytes that a window's loss keeps for the backward pass, counted without computing anything.

    Args:
        config: the options of the model and its window.
        memory: the memory choice.

    Raises:
        ValueError: if the choice has a name that the cell lacks.

    Example:
        >>> config = TrainConfig(hidden=8, batch=2, window=16)
        >>> count_kept_bytes(config, rs.Memory(segment=4)) < count_kept_bytes(config, None)
        True
    """
    params = jax.eval_shape(config.model.init, jax.random.key(0))
    streams = np.zeros((config.window + 1, config.batch), np.int32)
    return kept_bytes(window_loss(config, memory, streams), params)


def memory_flags(config: TrainConfig) -> str:
    """A memory choice as flags of the command line.

    Example:
        >>> memory_flags(TrainConfig(recompute=("gates",), segment=(64, 8)))
        '--recompute gates --segment 64,8'
    """
    recompute = config.recompute if isinstance(config.recompute, str) else ",".join(config.recompute)
    segment = ",".join(map(str, config.segment)) if isinstance(config.segment, tuple) else config.segment
    flags = [f"--recompute {recompute}" if recompute else "", f"--segment {segment}" if segment else ""]
    return " ".join(filter(None, flags))


def memory_of(recompute: Sequence[str] | None, segment: str | None = None) -> rs.Memory:
    """The memory choice of the options `--recompute` and `--segment`."""
    return rs.Memory(
        recompute=parse_recompute(recompute or ()), segment=None if segment is None else parse_segment(segment)
    )


def parse_recompute(values: Sequence[str]) -> tuple[str, ...] | Literal["all"]:
    """The names in `--recompute a --recompute b,c`, without duplicates, or "all".

    Raises:
        ValueError: if "all" is given with names.

    Example:
        >>> parse_recompute(["gates", "state, gates"])
        ('gates', 'state')
    """
    names = tuple(dict.fromkeys(name.strip() for value in values for name in value.split(",")))
    if "all" not in names:
        return names
    if len(names) > 1:
        raise ValueError(
            f"train: --recompute must be names, or `all` alone; got {', '.join(names)}. Leave out the names, or `all`."
        )
    return "all"


def parse_segment(value: str) -> int | Literal["sqrt"] | tuple[int, ...]:
    """`Memory.segment` of `--segment 32`, `--segment sqrt` or `--segment 64,8`.

    Raises:
        ValueError: if it is none of these.

    Example:
        >>> parse_segment("32"), parse_segment("64,8")
        (32, (64, 8))
    """
    if value == "sqrt":
        return "sqrt"
    parts = [part.strip() for part in value.split(",")]
    steps = tuple(int(part) for part in parts if part.isdecimal())
    if len(steps) < len(parts) or 0 in steps or any(one <= next_one for one, next_one in pairwise(steps)):
        raise ValueError(
            "train: --segment must be a number of steps of at least 1, several from the longest to the shortest with "
            f"commas between, or sqrt; got {value!r}. Write --segment 32, --segment 64,8 or --segment sqrt."
        )
    return steps[0] if len(steps) == 1 else steps
