"""`rnnscan plan`: a memory choice that fits a budget, and its memory report."""

from typing import Annotated

import typer
from rich.console import Console

import rnnscan as rs
from rnnscan._util.byte_sizes import budget_bytes, readable_bytes
from rnnscan._util.messages import in_words
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, Length, example_of
from rnnscan.cli.memory_limit import check_budget, check_fits
from rnnscan.cli.options import readable_errors
from rnnscan.cli.outputs import check_plot
from rnnscan.cli.tradeoff import LastOnly, Picture, Rounds, draw, measure
from rnnscan.insight.tradeoff import choice_name


def plan(
    cell: AnyCell,
    budget: Annotated[str, typer.Option(help="Bytes of a training step besides arguments and results: 512MiB.")],
    hidden: Hidden = None,
    inputs: Inputs = 128,
    batch: Batch = 32,
    length: Length = 1024,
    last_only: LastOnly = False,
    rounds: Rounds = 5,
    plot: Picture = None,
) -> None:
    """Find the cheapest memory choice that fits a budget, and show its memory report.

    --plot measures it and other choices, and draws time against memory.
    """
    console = Console(highlight=False)
    with readable_errors(), console.status("compiling"):
        check_plot(plot)
        example = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length)
        # Without measurements the arrays need not be on this machine, but in one that has the budget.
        check_fits(example, last_only=last_only, budget=budget_bytes(budget) if plot is None else 0)
        if not last_only:
            check_budget(example, budget)
        arguments = (example.cell, example.params, example.carry, example.xs)
        memory = rs.plan(*arguments, budget=budget, last_only=last_only, progress=False)
        report = rs.memory_report(*arguments, memory=memory.choice, compile=False)
    console.print(f"{memory.choice!r}", markup=False)
    console.print(
        f"A training step needs {readable_bytes(memory.temporary_bytes)} of {budget} besides its arguments and "
        f"results, and {memory.relative_cost:.2f} of the estimated time of keeping every name."
    )
    console.print(report)
    if plot is not None:
        rows = measure(example, [memory.choice], last_only=last_only, rounds=rounds, console=console)
        chosen = next(row.choice for row in rows if row.memory == memory.choice)
        title = f"{in_words(example.cell)}, {batch} rows x {length} steps: {choice_name(memory.choice)}"
        draw(rows, title, plot, chosen=chosen, console=console, budget=budget_bytes(budget))
