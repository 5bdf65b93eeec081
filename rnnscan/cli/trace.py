"""`rnnscan trace`: the values inside of a cell's scan."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console

import rnnscan as rs
from rnnscan._util.messages import is_float
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, Length, arguments_of, with_inputs
from rnnscan.cli.options import readable_errors
from rnnscan.cli.outputs import check_plot
from rnnscan.cli.tradeoff import Picture
from rnnscan.compose.output import output_of
from rnnscan.nets.base import Net


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
    """Show the values of a cell or net over random inputs, and their cotangents for the mean of the squared outputs.

    CELL may also be module:attribute of a tuple with the arguments of rnnscan.trace, such as (function, params, xs).
    """
    with readable_errors():
        check_plot(plot)
        arguments = with_inputs(arguments_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length))
        model, xs = arguments[0], jax.tree.leaves(arguments[-1])
        has_carry = isinstance(model, Net) or len(arguments) == 4
        steps = range(0, len(xs[0]), every) if every > 1 and xs else None
        traced = rs.trace(
            *arguments,
            names=None if names is None else [name.strip() for name in names.split(",")],
            steps=steps,
            loss=lambda results: _mean_square(output_of(results[1]) if has_carry else results),
        )
    console = Console(highlight=False)
    console.print(traced.summary())
    if plot is not None:
        traced.draw().savefig(plot)
        console.print(f"Picture in {plot}.")


def _mean_square(outputs: Any) -> Any:
    """The mean square of each floating leaf, summed."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
    return sum(jnp.mean(jnp.square(jnp.abs(leaf))) for leaf in leaves if is_float(leaf))
