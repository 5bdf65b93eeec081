"""The command line of the benchmarks."""

import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import jax
import typer
from rich.console import Console

from benchmarks.bars import bars
from benchmarks.machine import describe_machine
from benchmarks.measure import warm_compiler
from benchmarks.page import make_page
from benchmarks.result import Result
from benchmarks.rows import Engine
from benchmarks.run import DESCRIPTIONS, OWN_ROWS, Options, run_workload
from benchmarks.table import BAR_HEADINGS, HEADINGS, bar_rows, console_with, notes, result_rows, rich_table
from benchmarks.workloads import WORKLOADS


Precision = Literal["float32", "tensorfloat32"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    workload: Annotated[list[str] | None, typer.Option(help=f"{', '.join(WORKLOADS)}; may be repeated")] = None,
    rows: Annotated[str | None, typer.Option(help=f"some of {','.join(DESCRIPTIONS)}; plain always runs")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="without other libraries, at least 5 rounds")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="the least number of rounds; 9 without --quick")] = None,
    engine: Annotated[Engine, typer.Option(help="of rnnscan's rows")] = "auto",
    precision: Annotated[Precision, typer.Option(help="of products on a GPU")] = "float32",
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """Time and memory of rnnscan, plain JAX and other libraries."""
    options = Options(
        rows=known(rows.split(","), DESCRIPTIONS, "--rows") | {"plain"} if rows else _default_rows(quick),
        rounds=rounds or (5 if quick else 9),
        compilations=1 if quick else 2,
        engine=engine,
        precision=precision,
    )
    names = known(workload or list(WORKLOADS), WORKLOADS, "--workload")
    set_precision(precision)
    machine = describe_machine(precision)
    console = console_with(machine)
    results, wrong = _run_all([name for name in WORKLOADS if name in names], options, console)
    console.print(rich_table("Targets", BAR_HEADINGS, bar_rows(bars(results))))
    if write is not None:
        command = shown_command("benchmarks", write)
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(make_page(results, machine=machine, command=command, descriptions=DESCRIPTIONS))
        console.print(f"written to {write}")
    if wrong:
        raise SystemExit(f"benchmarks: results must be those of plain autodiff; they differ in {', '.join(wrong)}.")


def _run_all(names: list[str], options: Options, console: Console) -> tuple[dict[str, Result], list[str]]:
    """The results of workloads, and the names of those whose rows do not agree."""
    warm_compiler()
    results, wrong = {}, []
    for name in names:
        with console.status("") as status:
            try:
                results[name] = run_workload(WORKLOADS[name], options, status.update)
            except ArithmeticError as error:  # The others are measured, and the command fails in the end.
                wrong.append(name)
                console.print(f"workload {name}: {error}", style="bold red", markup=False)
                continue
        console.print(rich_table(f"{name}: {WORKLOADS[name].title}", HEADINGS, result_rows(results[name])))
        for note in notes(results[name]):
            console.print(note)
    return results, wrong


def _default_rows(quick: bool) -> set[str]:
    return set(OWN_ROWS) if quick else set(DESCRIPTIONS)


def shown_command(module: str, write: Path) -> str:
    """The command that made a page, without the path of the page."""
    arguments = [one for one in sys.argv[1:] if one not in ("--write", str(write), f"--write={write}")]
    return shlex.join(["python", "-m", module, *arguments])


def known(names: list[str], known: Collection[str], option: str) -> set[str]:
    """The names as a set, each of them known."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"must be of {', '.join(known)}; got {', '.join(unknown)}", param_hint=option)
    return set(names)


def set_precision(precision: Precision) -> None:
    """The precision of products on a GPU."""
    # XLA reserves most of a GPU's memory, and torch needs some. JAX reads this when it first uses the backend.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if jax.default_backend() != "cpu":
        jax.config.update("jax_default_matmul_precision", precision)
    elif precision != "float32":
        raise typer.BadParameter("a CPU computes in float32", param_hint="--precision")
