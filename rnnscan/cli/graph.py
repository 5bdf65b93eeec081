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
from rnnscan.cli.outputs import check_file, written_whole


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
# Suffixes of files that would look like pictures and hold text.
_OTHER_PICTURES = (".png", ".pdf", ".jpg", ".jpeg")


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
        if format is None:
            format = Format.TEXT if out is None else _format_of(out)
        if format is Format.SVG:
            import rnnscan.graph.draw.graphviz  # noqa: F401 (an error without the extra `plot`)
        if out is not None:
            check_file(out, "--out")
        example = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=1)
        x = jax.ShapeDtypeStruct(example.xs.shape[1:], example.xs.dtype)
        traced = rs.graph.trace(example.cell, example.params, example.carry, x)
        text = traced.draw(_PICTURES[format]).text if format in _PICTURES else str(traced)
    if out is None:
        sys.stdout.write(text.rstrip("\n") + "\n")
        return
    with written_whole(out) as file:
        file.write(text.encode())
    print(f"Graph in {out}.")


def _format_of(out: Path) -> Format:
    """The form that the file's suffix tells."""
    suffix = out.suffix.lower()
    if suffix in _OTHER_PICTURES:
        raise ValueError(
            f"graph: --out must be a file of text, .svg, .mmd or .dot; got {str(out)!r}. Write "
            f"{out.with_suffix('.svg').name}, or save a picture in Python: rnnscan.graph.trace(...).draw().save(path)."
        )
    return _SUFFIXES.get(suffix, Format.TEXT)
