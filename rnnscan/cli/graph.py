"""`rnnscan graph`: the operations of a cell's step."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import jax
import typer

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, example_of
from rnnscan.cli.options import readable_errors
from rnnscan.cli.outputs import written_whole


class Format(StrEnum):
    """The forms of a graph."""

    TEXT = "text"


def graph(
    cell: AnyCell,
    hidden: Hidden = None,
    inputs: Inputs = 128,
    batch: Batch = 32,
    format: Annotated[Format, typer.Option(help="The form to write.")] = Format.TEXT,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write.", show_default="stdout")] = None,
) -> None:
    """Show the operations of a cell's step as a graph: inputs, nodes and outputs."""
    with readable_errors():
        given = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=1)
        x = jax.ShapeDtypeStruct(given.xs.shape[1:], given.xs.dtype)
        traced = rs.graph.trace(given.cell, given.params, given.carry, x)
        text = f"{traced}\n"
        if out is None:
            sys.stdout.write(text)
            return
        with written_whole(out) as file:
            file.write(text.encode())
    print(f"Graph in {out}.")
