"""`rnnscan info`: the versions for a bug report, and the engine's split of a cell."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import jax
import typer
from jaxlib.version import __version__ as jaxlib_version
from rich.console import Console

from rnnscan.cli.explain import explain
from rnnscan.versions import advice


PACKAGES = ("rnnscan", "jax", "jaxlib", "numpy", "jaxtyping", "flax", "optax", "orbax-checkpoint")


def info(
    cell: Annotated[
        str | None, typer.Argument(metavar="CELL", help="A cell of the library, such as LSTM, or module:attribute.")
    ] = None,
) -> None:
    """Show the versions and devices for a bug report, and the engine's split of a cell."""
    console = Console(highlight=False)
    console.print(f"Python {platform.python_version()} on {platform.platform()}")
    for package in PACKAGES:
        console.print(f"{package} {_version(package)}")
    console.print(f"devices: {', '.join(map(str, jax.devices()))}")
    about_jax = advice(jax.__version__, jaxlib_version)
    if about_jax is not None:
        console.print(about_jax)
    if cell is not None:
        explain(cell)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not installed"
