"""The command line: compile for a platform, measure on a device, write the page."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.accelerators.target import TITLES, Platform, environment, is_here


FOLDER = Path(".accelerators")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("compile")
def compile_command(
    platform: Annotated[Platform, typer.Argument(help="gpu or tpu")],
    workload: Annotated[
        list[str] | None, typer.Option(help="a workload; may be repeated. Prints and writes nothing")
    ] = None,
    operations: Annotated[bool, typer.Option("--operations", help="print the operations that cost most")] = False,
    cached: Annotated[bool, typer.Option("--cached", help="leave out what has not been compiled before")] = False,
) -> None:
    """Compile all rows for a described device, and write the tables into `.accelerators/`."""
    os.environ.update(environment(platform))  # Before jax is imported.
    from benchmarks.accelerators.compile import compile_all
    from benchmarks.accelerators.figures import Cache
    from benchmarks.accelerators.lines import lines_of
    from benchmarks.accelerators.workloads import ALL

    cache = Cache(FOLDER / f"{platform}_programs.json")
    tables = compile_all(platform, workload or list(ALL), cache, _report, only_cached=cached)
    for line in lines_of(tables, platform, operations=operations):
        print(line)
    if workload is None:
        tables.write(FOLDER / f"{platform}.json")


@app.command()
def measure(platform: Annotated[Platform, typer.Argument(help="gpu or tpu")]) -> None:
    """Time the training steps on this machine's device, where it has one."""
    if not is_here(platform):
        print(f"No {TITLES[platform]} or the like is here: nothing is measured.")
        return
    from benchmarks.accelerators.measure import measure_all
    from benchmarks.accelerators.tables import Tables

    path = FOLDER / f"{platform}.json"
    tables = Tables.read(path)
    measure_all(tables, platform, _report)
    tables.write(path)


@app.command()
def page(write: Annotated[Path, typer.Option(help="a Markdown file")]) -> None:
    """Write the page from the tables."""
    from benchmarks.accelerators.page import make_page
    from benchmarks.accelerators.tables import Tables

    found = {platform: Tables.read(FOLDER / f"{platform}.json") for platform in TITLES}
    write.write_text(make_page(found))


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
