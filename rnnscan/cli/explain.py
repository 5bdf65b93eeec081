"""`rnnscan explain`: what the engine finds in a cell."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, Length, example_of
from rnnscan.cli.options import Recompute, parse_recompute, readable_errors


def explain(
    cell: AnyCell,
    hidden: Hidden = None,
    inputs: Inputs = 128,
    batch: Batch = 32,
    length: Length = 1024,
    recompute: Recompute = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the step into this file.")] = None,
) -> None:
    """Show which work of a cell is invariant, parallel, linear and recurrent, and what is kept."""
    with readable_errors():
        given = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length)
        memory = rs.Memory(recompute=parse_recompute(recompute) if recompute else ())
        explanation = rs.explain(given.cell, given.params, given.carry, given.xs, memory=memory)
        if plot is not None:
            from rnnscan.insight.picture import check_picture_file
            from rnnscan.insight.step_picture import step_figure

            check_picture_file(plot)
    console = Console(highlight=False)
    console.print(explanation)
    if plot is not None:
        names = getattr(given.cell, "carry_names", None) or tuple(f"carry{place}" for place in explanation.carry)
        plot.parent.mkdir(parents=True, exist_ok=True)
        step_figure(explanation, names, explanation.cell).savefig(plot)
        console.print(f"Picture in {plot}.")
