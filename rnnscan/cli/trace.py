"""`rnnscan trace`: the values inside of a cell's scan."""

from typing import Annotated

import jax.numpy as jnp
import typer
from rich.console import Console

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, Length, example_of
from rnnscan.cli.options import readable_errors
from rnnscan.cli.outputs import check_plot
from rnnscan.cli.tradeoff import Picture
from rnnscan.compose.output import output_of


def trace(
    cell: AnyCell,
    hidden: Hidden = None,
    inputs: Inputs = 128,
    batch: Batch = 32,
    length: Length = 128,
    names: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Values to trace, with commas between; all by default.")
    ] = None,
    every: Annotated[int, typer.Option(help="Trace every so many steps.", min=1)] = 1,
    plot: Picture = None,
) -> None:
    """Show the values of a cell over random inputs, and their cotangents for the mean of the squared outputs."""
    with readable_errors():
        check_plot(plot)
        example = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length).with_arrays()
        traced = rs.trace(
            example.cell,
            example.params,
            example.carry,
            example.xs,
            names=None if names is None else [name.strip() for name in names.split(",")],
            steps=None if every == 1 else range(0, length, every),
            loss=lambda results: jnp.mean(jnp.square(output_of(results[1]))),
        )
    console = Console(highlight=False)
    console.print(traced.summary())
    if plot is not None:
        traced.draw().savefig(plot)
        console.print(f"Picture in {plot}.")
