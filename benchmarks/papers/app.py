"""The command line of the paper tables."""

import time
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.app import known
from benchmarks.machine import describe_machine
from benchmarks.papers.result import Figure
from benchmarks.table import console_with, markdown_table, rich_table


TASKS = ("mnist1d", "long_term", "chomsky", "likelihoods", "garch")
HEADINGS = ("task", "what", "published", "rnnscan", "met", "seconds", "source")
PAGE = """# Figures of papers

Published figures, and what rnnscan reaches. `make papers` trains all models and makes this page. MNIST-1D has the
settings of its paper, and is met within the published spread or beyond it on the better side; torch counts 24
parameters more, 5,134, because it adds two biases in the gates where rnnscan has their sum. Times of torch in this run
are with one thread, in blocks that alternate with those of rnnscan. Sizes and training of the adding and copying
problems are ours: a loss below that of a model without memory is met.

The tasks of the Chomsky hierarchy have the settings of the example in the public code of Delétang et al.: strings of 1
to 40 letters in batches of 128, Adam, gradients clipped to a norm of 1, 10,000 steps, then the mean accuracy on lengths
41 to 100. Networks are smaller than its 256 units, because 10,000 steps of such an LSTM take 19 minutes on two
processors. The RNN has relu, as there, and the LSTM a learning rate of 0.003, not 0.001. The paper itself trains
longer, tests lengths up to 500, and takes the best of several seeds and learning rates; here is one seed. Published is
on which side of 90 % the paper has these networks: they solve the regular tasks, and none that needs a stack.

Likelihoods are met if they equal those of statsmodels, dynamax and arch to 1e-9. The gradient of GARCH is met if it
equals central differences of arch's likelihood to 1e-6. Rows for packages that are not installed, as torch may be, have
nothing to meet.

{machine}

{table}

Made by `python -m benchmarks.papers`, in {minutes:.0f} minutes.
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    task: Annotated[list[str] | None, typer.Option(help=f"{', '.join(TASKS)}; these ones; may be repeated")] = None,
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """Published figures of recurrent networks, and those of rnnscan beside them."""
    machine = describe_machine("float32")
    console = console_with(machine)
    names, started = known(task or list(TASKS), TASKS, "--task"), time.perf_counter()
    figures: list[Figure] = []
    for name in (name for name in TASKS if name in names):
        for figure in import_module(f"benchmarks.papers.{name}").figures():
            figures.append(figure)
            console.print(f"{figure.task}: {figure.what} {figure.ours}, published {figure.published}", markup=False)
    rows = [cells_of(figure) for figure in figures]
    console.print(rich_table("Figures of papers", HEADINGS, rows))
    if write is not None:
        lines = "\n".join(f"- {heading}: {text}" for heading, text in machine.items())
        minutes = (time.perf_counter() - started) / 60
        write.write_text(PAGE.format(machine=lines, table=markdown_table(HEADINGS, rows), minutes=minutes))
        console.print(f"written to {write}")
    if any(figure.met is False for figure in figures):
        raise typer.Exit(1)


def cells_of(figure: Figure) -> tuple[str, ...]:
    """The cells of a figure in the table."""
    met = {True: "met", False: "**not met**", None: ""}[figure.met]
    return figure.task, figure.what, figure.published, figure.ours, met, f"{figure.seconds:.0f}", figure.source
