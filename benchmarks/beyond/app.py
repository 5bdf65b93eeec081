"""The command line of the uses beyond RNNs."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.app import known, set_precision, shown_command
from benchmarks.beyond.bars import beyond_bars
from benchmarks.beyond.run import run_use
from benchmarks.beyond.table import USE_HEADINGS, load_note, make_page, use_rows
from benchmarks.beyond.uses import USES
from benchmarks.machine import describe_machine
from benchmarks.measure import warm_compiler
from benchmarks.table import BAR_HEADINGS, bar_rows, console_with, rich_table


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    use: Annotated[list[str] | None, typer.Option(help=f"{', '.join(USES)}; may be repeated")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="at least 3 rounds, one compilation, short sequences")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="the least number of rounds; 9 without --quick")] = None,
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """Time and memory of rnnscan beside plain `lax.scan`, for uses that are no RNN."""
    chosen = known(use or [name for name in USES if not (quick and USES[name].long)], USES, "--use")
    set_precision("float32")
    machine = describe_machine("float32")
    console = console_with(machine)
    warm_compiler()
    results, accuracies, wrong = {}, {}, {}
    for name in [name for name in USES if name in chosen]:
        with console.status("") as status:
            try:
                results[name], accuracy = run_use(
                    USES[name],
                    rounds=rounds or (3 if quick else 9),
                    seconds=0.2 if quick else 1.0,
                    compilations=1 if quick else 2,
                    report=lambda text, name=name, status=status: status.update(f"{name}: {text}"),
                )
            except ArithmeticError as error:  # The others are measured, and the command fails in the end.
                wrong[name] = error
                console.print(f"use {name}: {error}", style="bold red", markup=False)
                continue
        if accuracy is not None:
            accuracies[name] = accuracy
        (cells,) = use_rows({name: results[name]})
        console.print(", ".join(f"{heading} {cell}" for heading, cell in zip(USE_HEADINGS, cells, strict=True) if cell))
    bars = beyond_bars(results, accuracies)
    console.print(rich_table("Uses beyond RNNs; ! is above its bar", USE_HEADINGS, use_rows(results)))
    console.print(load_note(results))
    console.print(rich_table("Targets", BAR_HEADINGS, bar_rows(bars)))
    if write is not None:
        command = shown_command("benchmarks.beyond", write)
        write.write_text(make_page(results, bars, machine=machine, command=command))
        console.print(f"written to {write}")
    if wrong:
        raise SystemExit(f"beyond: results must be those of plain autodiff; they differ in {', '.join(wrong)}.")
