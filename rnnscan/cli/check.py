"""`rnnscan check`: is a recurrent model what it claims?"""

from typing import Annotated

import typer
from rich.console import Console

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, arguments_of
from rnnscan.cli.options import readable_errors


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
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps of the inputs; several chunks of a chunked form.", show_default="those of xs, or 8", min=2
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0)] = 0,
) -> None:
    """Check that a cell or net is what it claims: documents, padding, windows, gradients and more.

    CELL may also be module:attribute of a tuple with the arguments of rnnscan.check, such as (function, params, xs).
    It exits with 1 if a check does not hold.
    """
    console = Console(highlight=False)
    with readable_errors(), console.status("checking"):
        arguments = arguments_of(cell, hidden=hidden, inputs=inputs, batch=3, length=8, units=_UNITS)
        report = rs.check(*arguments, only=only or None, skip=skip or None, steps=steps, seed=seed)
    console.print(report)
    if not report.ok:
        raise typer.Exit(FAILED)
