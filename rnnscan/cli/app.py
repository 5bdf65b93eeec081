"""The commands, put together."""

import typer

from rnnscan.cli.tradeoff import tradeoff
from rnnscan.cli.train import train


app = typer.Typer(
    name="rnnscan",
    help="Recurrent networks in JAX that keep in memory what you say, and compute the rest again.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(train)
app.command()(tradeoff)
