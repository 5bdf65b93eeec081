"""`rnnscan plan`: a memory choice that fits a budget, and where its bytes go."""

from typing import Annotated

import typer
from rich.console import Console

import rnnscan as rs
from rnnscan.cli.cells import AnyCell, Batch, Hidden, Inputs, Length, example_of
from rnnscan.cli.options import readable_errors
from rnnscan.insight.tradeoff import readable_bytes


def plan(
    cell: AnyCell,
    budget: Annotated[str, typer.Option(help="What a training step may need beside arguments and results: 512MiB.")],
    hidden: Hidden = 256,
    inputs: Inputs = 128,
    batch: Batch = 32,
    length: Length = 1024,
    last_only: Annotated[bool, typer.Option("--last-only", help="The loss reads the last carry alone.")] = False,
) -> None:
    """Find the memory choice of the least cost that fits a budget, and show where its bytes go."""
    console = Console(highlight=False)
    with readable_errors(), console.status("compiling"):
        given = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length)
        arguments = (given.cell, given.params, given.carry, given.xs)
        memory = rs.plan(*arguments, budget=budget, last_only=last_only)
        chosen = rs.Memory(memory.recompute, memory.offload, memory.segment, memory.chunk)
        report = rs.memory_report(*arguments, memory=chosen, compile=False)
    console.print(f"{chosen!r}", markup=False)
    console.print(
        f"needs {readable_bytes(memory.temporary_bytes)} of {budget}, at {memory.relative_cost:.2f} of the operations "
        "of keeping every name."
    )
    console.print(report)
