"""`rnnscan tradeoff`: the cost of memory choices, measured on this machine."""

from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import jax
import typer
from rich.console import Console
from rich.table import Table

import rnnscan as rs
from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.messages import in_words
from rnnscan.cli.cells import AnyCell, Batch, Example, Hidden, Inputs, Length, example_of
from rnnscan.cli.memory_limit import check_fits
from rnnscan.cli.options import Recompute, Segment, memory_of, readable_errors
from rnnscan.cli.outputs import check_plot
from rnnscan.insight import Tradeoff, measure_tradeoff
from rnnscan.insight.tradeoff import choice_name, memory_choices


Rounds: TypeAlias = Annotated[int, typer.Option(help="Runs of each choice.", min=1)]
Picture: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a picture into this file.")]
LastOnly: TypeAlias = Annotated[bool, typer.Option("--last-only", help="The loss reads only the last carry.")]


def tradeoff(
    cell: AnyCell = "LSTM",
    hidden: Hidden = None,
    inputs: Inputs = 128,
    batch: Batch = 32,
    length: Length = 128,
    recompute: Recompute = None,
    segment: Segment = None,
    budget: Annotated[str | None, typer.Option(help="Add the choice planned for this budget: 64MiB.")] = None,
    last_only: LastOnly = False,
    rounds: Rounds = 10,
    plot: Picture = None,
) -> None:
    """Measure the gradient of a cell's scan under several memory choices.

    --recompute and --segment add your own choice.
    """
    console = Console(highlight=False)
    with readable_errors(), console.status("tracing"):
        check_plot(plot)
        example = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length)
        check_fits(example, last_only=last_only)
        further: list[rs.Memory] = []
        chosen = None
        if recompute or segment is not None:
            further.append(memory_of(recompute, segment))
            # Tracing rejects unknown names.
            jax.eval_shape(partial(rs.scan, example.cell, memory=further[0]), example.params, example.carry, example.xs)
        if budget is not None:
            arguments = (example.cell, example.params, example.carry, example.xs)
            planned = rs.plan(*arguments, budget=budget, last_only=last_only, progress=False)
            further.append(planned.choice)
            chosen = choice_name(planned.choice)
    rows = measure(example, further, last_only=last_only, rounds=rounds, console=console)
    shape = f"{in_words(example.cell)}, {batch} rows x {length} steps of {inputs} features"
    console.print(table_of(rows, shape))
    if plot is not None:
        draw(rows, f"The cost of memory choices: {shape}", plot, chosen=chosen, console=console)


def measure(
    example: Example, further: list[rs.Memory], *, last_only: bool, rounds: int, console: Console
) -> list[Tradeoff]:
    """Measure the usual memory choices and your own.

    Args:
        example: the cell and the shapes.
        further: choices beyond the usual ones.
        last_only: whether the loss reads only the last carry.
        rounds: the number of runs of each choice.
        console: shows the progress.

    Returns:
        A row for each choice.
    """
    arrays = example.with_arrays()
    choices = memory_choices(example.cell.names, example.xs.shape[0])
    choices |= {choice_name(memory): memory for memory in further if memory not in choices.values()}
    with console.status("measuring") as status:
        return measure_tradeoff(
            arrays.cell,
            arrays.params,
            arrays.carry,
            arrays.xs,
            choices=choices,
            rounds=rounds,
            report=status.update,
            last_only=last_only,
        )


def draw(
    rows: list[Tradeoff],
    title: str,
    file: Path,
    *,
    chosen: str | None,
    console: Console,
    budget: int | None = None,
) -> None:
    """Draw measured choices into a file.

    Args:
        rows: the choices.
        title: the picture's title.
        file: the picture.
        chosen: the choice to mark.
        console: shows the picture's path.
        budget: temporary bytes to mark; draws temporary bytes instead of kept ones.
    """
    from rnnscan.insight.picture import save_tradeoff_figure

    axis = "kept" if budget is None else "temporary"
    save_tradeoff_figure(rows, title, file, axis=axis, chosen=chosen, budget=budget)
    console.print(f"Picture in {file}.")


def table_of(rows: list[Tradeoff], shape: str) -> Table:
    """The measured choices as a table; `shape` is the cell and its sizes in words."""
    first = rows[0]
    table = Table(
        title=f"The cost of memory choices: {shape}",
        title_justify="left",
        caption="kept: for the backward pass, including the loss's own residuals.\n"
        "temporary: XLA's peak of temporary memory over both passes.\n"
        "time of plain: the ratio within each round; the median over the rounds.",
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
