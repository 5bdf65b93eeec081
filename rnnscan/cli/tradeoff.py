"""`rnnscan tradeoff`: what memory choices cost, measured side by side on this machine."""

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import rnnscan as rs
from rnnscan.cli.options import (
    Batch,
    Cell,
    Embedding,
    Hidden,
    Layers,
    Recompute,
    Seed,
    Segment,
    Window,
    config_of,
    count_kept_bytes,
    memory_flags,
    parse_recompute,
    parse_segment,
    readable_errors,
)
from rnnscan.insight.tradeoff import Tradeoff, measure_tradeoff, readable_bytes
from rnnscan.train import TrainConfig, window_loss


def tradeoff(
    cell: Cell = None,
    hidden: Hidden = None,
    layers: Layers = None,
    embedding: Embedding = None,
    batch: Batch = None,
    window: Window = None,
    seed: Seed = None,
    recompute: Recompute = None,
    segment: Segment = None,
    rounds: Annotated[int, typer.Option(help="How often each choice is run.", min=1)] = 10,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a picture into this file.")] = None,
) -> None:
    """Compute the gradient of an update of `rnnscan train` under several memory choices, and see what each costs.

    --recompute and --segment add a choice of your own.
    """
    with readable_errors():
        config = config_of(
            {
                "cell": None if cell is None else cell.value,
                "hidden": hidden,
                "layers": layers,
                "embedding": embedding,
                "batch": batch,
                "window": window,
                "seed": seed,
                "recompute": parse_recompute(recompute) if recompute else None,
                "segment": None if segment is None else parse_segment(segment),
            }
        )
        count_kept_bytes(
            config, config.memory
        )  # It traces the model, and so refuses names that the cell does not have.
        if plot is not None:
            from rnnscan.insight.picture import check_picture_file, save_tradeoff_figure

            check_picture_file(plot)
    console = Console(highlight=False)
    with console.status("measuring") as status:
        rows = _measure(config, rounds, status.update)
    shape = f"{config.cell}, {config.layers} x {config.hidden} units, {config.batch} streams x {config.window} steps"
    console.print(_table(rows, shape))
    if plot is not None:
        save_tradeoff_figure(rows, f"What a memory choice costs: {shape}", plot)
        console.print(f"Picture in {plot}.")


def memory_choices(names: tuple[str, ...], window: int) -> dict[str, rs.Memory | None]:
    """The choices that are compared, by the names that the table gives them.

    Args:
        names: the names that the cell gives to intermediates.
        window: the number of steps.

    Returns:
        Plain autodiff first; nested segments last, where the window is long enough to nest.

    Example:
        >>> list(memory_choices(("gates",), window=64))
        ['plain autodiff', 'every name kept', 'recompute gates', 'segment sqrt', 'segment 16,4']
    """
    choices: dict[str, rs.Memory | None] = {
        "plain autodiff": None,
        "every name kept": rs.Memory(),
        f"recompute {','.join(names)}": rs.Memory(recompute=names),
        "segment sqrt": rs.Memory(segment="sqrt"),
    }
    inner = ceil(round(window ** (1 / 3), 6))
    outer = inner**2
    if 1 < inner < outer < window:
        choices[f"segment {outer},{inner}"] = rs.Memory(segment=(outer, inner))
    return choices


def _measure(config: TrainConfig, rounds: int, report: Callable[[str], None]) -> list[Tradeoff]:
    params = jax.jit(config.model.init)(jax.random.key(config.seed))
    streams = np.random.default_rng(config.seed).integers(0, 256, (config.window + 1, config.batch), np.int32)
    choices = memory_choices(config.model.cells.names, config.window)
    if flags := memory_flags(config):
        choices[flags] = config.memory
    return measure_tradeoff(
        lambda memory: (window_loss(config, memory, streams), (params,)), choices, rounds=rounds, report=report
    )


def _table(rows: list[Tradeoff], shape: str) -> Table:
    first = rows[0]
    table = Table(
        title=f"What a memory choice costs: {shape}",
        title_justify="left",
        caption="kept: between the forward and the backward pass of an update.\n"
        "temporary: XLA's peak of temporary memory over both passes.\n"
        "time of plain: compared within each round; the median over the rounds.",
        caption_justify="left",
    )
    table.add_column("choice")
    for column in ("kept", "kept\nof plain", "temporary", "time", "time\nof plain"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.choice,
            readable_bytes(row.kept_bytes),
            f"{row.kept_bytes / first.kept_bytes:.0%}",
            "unknown" if row.temporary_bytes is None else readable_bytes(row.temporary_bytes),
            f"{1000 * row.seconds:.1f} ms",
            f"{row.relative_time:.2f}",
        )
    return table
