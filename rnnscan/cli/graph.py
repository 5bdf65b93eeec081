"""`rnnscan graph`: the operations of a cell's step, as text or as a picture."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import jax
import typer

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, example_of
from rnnscan.cli.options import readable_errors
from rnnscan.cli.outputs import written_whole


class Format(StrEnum):
    """The forms of a graph."""

    TEXT = "text"
    SVG = "svg"
    MERMAID = "mermaid"
    DOT = "dot"


_PICTURES: dict[Format, Literal["svg", "mermaid", "dot"]] = {
    Format.SVG: "svg",
    Format.MERMAID: "mermaid",
    Format.DOT: "dot",
}
# Suffixes of files that tell the form.
_SUFFIXES = {".svg": Format.SVG, ".mmd": Format.MERMAID, ".dot": Format.DOT, ".gv": Format.DOT}


def graph(
    cell: AnyCell,
    hidden: Hidden = None,
    inputs: Inputs = 128,
    batch: Batch = 32,
    format: Annotated[
        Format | None, typer.Option(help="The form.", show_default="that of FILE: .svg, .mmd, .dot; else text")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write.", show_default="stdout")] = None,
) -> None:
    """Show the operations of a cell's step as a graph: as text, or as a picture.

    The colors of a picture are the kinds of work.
    """
    with readable_errors():
        example = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=1)
        x = jax.ShapeDtypeStruct(example.xs.shape[1:], example.xs.dtype)
        traced = rs.graph.trace(example.cell, example.params, example.carry, x)
        if format is None:
            format = Format.TEXT if out is None else _SUFFIXES.get(out.suffix, Format.TEXT)
        text = traced.draw(_PICTURES[format]).text if format in _PICTURES else str(traced)
    if out is None:
        sys.stdout.write(text.rstrip("\n") + "\n")
        return
    with written_whole(out) as file:
        file.write(text.encode())
    print(f"Graph in {out}.")
