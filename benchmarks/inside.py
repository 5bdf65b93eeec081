"""What the tools that look inside a scan cost: `python -m benchmarks.inside`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console

import rnnscan as rs
from benchmarks.machine import describe_machine, with_condition
from benchmarks.measure import take_turns
from benchmarks.others import Others
from benchmarks.table import markdown_table, rich_table
from rnnscan import cells


ROUNDS = 15
PAGE = """# Benchmarks of tools

What the tools that look inside a scan cost, `python -m benchmarks.inside`. The rows of a table take turns in {rounds}
rounds or more, and a figure is the median over the rounds of the ratio within a round. A training step is the loss, the
sum of squares of all outputs, and its gradient for the parameters.

{machine}

## A run that is finite, by `rs.first_nonfinite`

The time of `rs.first_nonfinite(step, ...)` where all is finite, of that of the step. The limit is 1.05 in
segments, and 1.15 without.

{finite}

## `rs.profile` beside the clock

The time of all operations that `rs.profile` shows, of that of a run without the profiler: the median of as many
profiles as rounds. The limits are 0.90 and 1.10.

{profile}

## `rs.progress` over 100,000 steps

The time of a scan with a bar, of that without. The limit is 1.03. The scan runs in windows, and the outer loop copies
what a window returns: outputs, and in training residuals.

{progress}
"""
HEADINGS = ("what", "ms", "ratio")

# What is measured, the milliseconds without the tool, and the ratio with it.
Rows = list[tuple[str, str, str]]


def _given(cell: Any, shape: tuple[int, int, int]) -> tuple[Any, Any]:
    """The parameters of a cell, and inputs of so many steps, rows and features."""
    return cell.init(jax.random.key(0), input_size=shape[-1]), jax.random.normal(jax.random.key(1), shape)


def _training_step(cell: Any, **options: Any) -> Callable[..., Any]:
    """A jitted training step. The options are those of `scan`."""
    return jax.jit(jax.value_and_grad(_loss(cell, **options)))


def _loss(cell: Any, **options: Any) -> Callable[[Any, Any], Any]:
    def loss(params: Any, xs: Any) -> Any:
        return jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)[1] ** 2)

    return loss


CELLS: Mapping[str, tuple[Any, tuple[int, int, int]]] = {
    "LSTM of 128 units, 512 steps, 16 rows": (cells.LSTM(128), (512, 16, 64)),
    "GRU of 64 units, 2,000 steps, 8 rows": (cells.GRU(64), (2_000, 8, 32)),
    "LSTM of 8 units, 1,000 steps, 1 row": (cells.LSTM(8), (1_000, 1, 8)),
}


def finite_rows(rounds: int) -> Rows:
    """The cost of a run without a value that is not finite."""
    rows = []
    for title, (cell, shape) in CELLS.items():
        for words, memory in (("", rs.Memory()), (", segments", rs.Memory(segment="sqrt"))):
            step, given = _training_step(cell, memory=memory), _given(cell, shape)
            runs = {
                "plain": lambda step=step, given=given: jax.block_until_ready(step(*given)),
                "checked": lambda step=step, given=given: rs.first_nonfinite(step, *given),
            }
            rows.append((f"{title}{words}", *_compared(runs, rounds)))
    return rows


def profile_rows(rounds: int) -> Rows:
    """The time of all operations beside that of a run."""
    rows = []
    for title, (cell, shape) in CELLS.items():
        step, given = _training_step(cell), _given(cell, shape)
        profiles = [rs.profile(step, *given) for _ in range(rounds)]
        ratio = median(profile.total / profile.seconds for profile in profiles)
        rows.append((title, f"{1e3 * median(profile.seconds for profile in profiles):.1f}", f"{ratio:.2f}"))
    return rows


def progress_rows(rounds: int) -> Rows:
    """The cost of a bar, forward and in training."""
    rows = []
    for units, batch in ((64, 1), (96, 16)):
        for name, cell in (("LSTM", cells.LSTM(units)), ("GRU", cells.GRU(units))):
            given = _given(cell, (100_000, batch, 8))
            for words, made in (("forward", lambda cell: jax.jit(_loss(cell))), ("training", _training_step)):
                runs = {
                    row: lambda step=made(own), given=given: jax.block_until_ready(step(*given))
                    for row, own in (("plain", cell), ("bar", rs.progress(cell)))
                }
                title = f"{name} of {units} units, {batch} {'row' if batch == 1 else 'rows'}, {words}"
                rows.append((title, *_compared(runs, rounds)))
    return rows


def _compared(runs: Mapping[str, Callable[[], Any]], rounds: int) -> tuple[str, str]:
    """The milliseconds of the first row, and the ratio of the second to it."""
    first, second = take_turns(runs, rounds=rounds, report=lambda *_: None).values()
    ratio = median(own / plain for own, plain in zip(second, first, strict=True))
    return f"{1e3 * median(first):.1f}", f"{ratio:.2f}"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="the least number of rounds")] = ROUNDS,
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """What the tools that look inside a scan cost."""
    console, others = Console(width=120), Others()
    parts = {"finite": finite_rows(rounds), "profile": profile_rows(rounds), "progress": progress_rows(rounds)}
    for title, rows in parts.items():
        console.print(rich_table(title, HEADINGS, rows))
    if write is not None:
        machine, load = describe_machine("float32"), others.sentence()
        lines = "\n".join(f"- {heading}: {text}" for heading, text in machine.items())
        tables = {title: markdown_table(HEADINGS, rows) for title, rows in parts.items()}
        write.write_text(with_condition(PAGE.format(rounds=rounds, machine=lines, **tables), machine, load))


if __name__ == "__main__":
    typer.run(main)
