"""`rnnscan check`: is a recurrent model what it claims?"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, example_of
from rnnscan.cli.modules import import_attribute
from rnnscan.cli.options import readable_errors
from rnnscan.nets.base import Net


# The exit code if a check does not hold. Errors of the arguments exit with 2.
FAILED = 1

_UNITS, _FEATURES = 8, 4


def check(
    cell: AnyCell,
    hidden: Annotated[
        int | None, typer.Option(help="Units of a cell of the library.", show_default=str(_UNITS), min=1)
    ] = None,
    inputs: Annotated[int, typer.Option(help="Features of one step's input.", min=1)] = _FEATURES,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Run this check only; may repeat.")] = None,
    skip: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Leave this check out; may repeat.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0)] = 0,
) -> None:
    """Check that a cell or net is what it claims: documents, padding, windows, gradients and more.

    CELL may also be module:attribute of a tuple with the arguments of rnnscan.check, such as (function, params, xs).
    It exits with 1 if a check does not hold.
    """
    console = Console(highlight=False)
    with readable_errors(), console.status("checking"):
        arguments = _arguments(cell, hidden, inputs)
        report = rs.check(*arguments, only=only or None, skip=skip or None, seed=seed)
    console.print(report)
    if not report.ok:
        raise typer.Exit(FAILED)


def _arguments(cell: str, hidden: int | None, inputs: int) -> tuple[Any, ...]:
    """The arguments of `rnnscan.check`, with random parameters."""
    attribute = import_attribute(cell, "CELL") if ":" in cell else None
    if isinstance(attribute, tuple):
        return attribute
    xs = jax.ShapeDtypeStruct((8, 3, inputs), jnp.float32)
    if isinstance(attribute, Net):
        net: Any = attribute
        return net, net.init(jax.random.key(0), inputs), xs
    units = hidden if ":" in cell else hidden or _UNITS
    example = example_of(cell, hidden=units, inputs=inputs, batch=3, length=8)
    params = example.cell.init(jax.random.key(0), inputs)
    return example.cell, params, None, xs
