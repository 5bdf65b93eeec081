"""The app and its commands."""

from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from rnnscan.cli.check import check
from rnnscan.cli.commands import Command, Group
from rnnscan.cli.explain import explain
from rnnscan.cli.export import export
from rnnscan.cli.graph import graph
from rnnscan.cli.info import info
from rnnscan.cli.plan import plan
from rnnscan.cli.run import run
from rnnscan.cli.trace import trace
from rnnscan.cli.tradeoff import tradeoff
from rnnscan.cli.train import train


app = typer.Typer(
    name="rnnscan",
    cls=Group,
    help="RNNs in JAX, with explicit control over what is saved for the backward pass.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(cls=Command)(train)
app.command(cls=Command)(export)
app.command(cls=Command)(run)
app.command(cls=Command)(tradeoff)
app.command(cls=Command)(explain)
app.command(cls=Command)(trace)
app.command(cls=Command)(plan)
app.command(cls=Command)(check)
app.command(cls=Command)(graph)
app.command(cls=Command)(info)


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"rnnscan {installed_version('rnnscan')}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """The options before the command."""
