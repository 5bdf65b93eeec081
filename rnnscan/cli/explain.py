"""`rnnscan explain`: the engine's split of a cell."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, Length, example_of
from rnnscan.cli.options import Recompute, memory_of, readable_errors
from rnnscan.cli.outputs import check_file
from rnnscan.graph.draw.picture import check_ending


def explain(
    cell: AnyCell,
    hidden: Hidden = None,
    inputs: Inputs = 128,
    batch: Batch = 32,
    length: Length = 1024,
    recompute: Recompute = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the step into this file.")] = None,
) -> None:
    """Show the invariant, parallel, linear and recurrent work of a cell, and the values that are kept."""
    with readable_errors():
        if plot is not None:
            check_ending(plot)
            check_file(plot, "--plot")
        example = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length)
        explanation = rs.explain(example.cell, example.params, example.carry, example.xs, memory=memory_of(recompute))
    console = Console(highlight=False)
    console.print(explanation)
    if plot is not None:
        explanation.draw(title=explanation.cell).save(plot)
        console.print(f"Picture in {plot}.")
