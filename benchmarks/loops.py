"""Gradients of loops that stop by a condition, beside Equinox's: `python -m benchmarks.loops`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import rnnscan as rs
from benchmarks.machine import describe_machine, with_condition
from benchmarks.others import Others
from rnnscan.insight import kept_bytes


FAR = 100
ROUNDS = 15
PAGE = """# Loops that stop by a condition

The gradient of a loop in its parameters and its carry, `python -m benchmarks.loops`. Time is the median of {rounds}
rounds in which the rows take turns, relative to the first row. "{far}x" rows have a limit of {far} times the steps that
run. Checkpoints are carries that are held at once: for rnnscan all steps, or the segments and the steps of one; for
Equinox the argument `checkpoints` of `equinox.internal.while_loop`. Kept bytes are the residuals of `jax.vjp`.

{machine}

{tables}
"""


@dataclass(frozen=True)
class Loop:
    """A loop of some steps over `(index, hidden)`.

    Attributes:
        title: its title.
        steps: the steps that run.
        hidden: the hidden state before the first.
        step: `(params, hidden) -> hidden`.
        params: the parameters.
    """

    title: str
    steps: int
    hidden: Any
    step: Callable[[Any, Any], Any]
    params: Any

    def body(self, params: Any, carry: Any) -> Any:
        return carry[0] + 1, self.step(params, carry[1])

    def rnnscan(self, memory: rs.Memory, limit: int) -> Callable[[Any, Any], Any]:
        """The loss by rnnscan."""

        def loss(params: Any, hidden: Any) -> Any:
            goes_on = lambda _, carry: carry[0] < self.steps  # noqa: E731
            carry, _ = rs.while_net(
                goes_on, self.body, (0, hidden), params=params, max_steps=limit, memory=memory, on_limit="stop"
            )
            return jnp.sum(carry[1] ** 2)

        return loss

    def equinox(self, checkpoints: int, limit: int) -> Callable[[Any, Any], Any]:
        """The loss by Equinox."""

        def loss(params: Any, hidden: Any) -> Any:
            goes_on = lambda carry: carry[0] < self.steps  # noqa: E731
            body = lambda carry: self.body(params, carry)  # noqa: E731
            start = (jnp.int32(0), hidden)
            options = {"max_steps": limit, "kind": "checkpointed", "checkpoints": checkpoints}
            return jnp.sum(eqxi.while_loop(goes_on, body, start, **options)[1] ** 2)

        return loss

    def rows(self) -> dict[str, tuple[int, Callable[[Any, Any], Any]]]:
        """The checkpoints and the loss of each row. Each row of Equinox follows that of rnnscan with as many."""
        segment = isqrt(self.steps - 1) + 1
        few, far = 2 * segment, FAR * self.steps
        return {
            "rnnscan": (self.steps, self.rnnscan(rs.Memory(), self.steps)),
            "Equinox, all steps": (self.steps, self.equinox(self.steps, self.steps)),
            "rnnscan, segments": (few, self.rnnscan(rs.Memory(segment=segment), self.steps)),
            "Equinox, as many": (few, self.equinox(few, self.steps)),
            f"rnnscan, {FAR}x": (far, self.rnnscan(rs.Memory(), far)),
            f"rnnscan, segments, {FAR}x": (2 * (isqrt(far - 1) + 1), self.rnnscan(rs.Memory(segment="sqrt"), far)),
        }


def loops() -> list[Loop]:
    """A loop of many cheap steps, and one of a few heavy ones."""
    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    scale = 1 + 0.1 * normal(32)
    kernel, bias = normal(512, 512) / 512**0.5, normal(512)
    return [
        Loop("10,000 cheap steps: tanh(a h + b), 32 floats", 10_000, normal(32), _cheap, (scale, normal(32))),
        Loop("300 heavy steps: tanh(h W + b), (32, 512)", 300, normal(32, 512), _heavy, (kernel, bias)),
    ]


def _cheap(params: Any, hidden: Any) -> Any:
    return jnp.tanh(hidden * params[0] + params[1])


def _heavy(params: Any, hidden: Any) -> Any:
    return jnp.tanh(hidden @ params[0] + params[1])


def measure(loop: Loop, rounds: int) -> Table:
    """Compile the rows, check that they agree, and time them in turns."""
    rows = loop.rows()
    runs, kept = {}, {}
    for name, (_, loss) in rows.items():
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(loop.params, loop.hidden).compile()
        runs[name] = lambda gradient=gradient: jax.block_until_ready(gradient(loop.params, loop.hidden))
        kept[name] = kept_bytes(loss, loop.params, loop.hidden)
    reference = next(iter(runs.values()))()
    for run in runs.values():
        for own, wanted in zip(jax.tree.leaves(run()), jax.tree.leaves(reference), strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-3, atol=1e-4 * float(jnp.abs(wanted).max()))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: median(taken) for name, taken in seconds.items()}
    first = next(iter(medians.values()))
    table = Table("row", "checkpoints", "ms", "time", "kept bytes", title=loop.title)
    for name, (checkpoints, _) in rows.items():
        own = medians[name]
        table.add_row(name, f"{checkpoints:,}", f"{1e3 * own:.1f}", f"{own / first:.2f}", f"{kept[name]:,}")
    return table


def _markdown(table: Table) -> str:
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    lines = ["| " + " | ".join(row) + " |" for row in zip(*columns, strict=True)]
    rule = "| --- |" + " ---: |" * (len(columns) - 1)
    return "\n".join([f"## {table.title}", "", lines[0], rule, *lines[1:]])


def main(
    rounds: Annotated[int, typer.Option(min=1, help="rounds of each loop")] = ROUNDS,
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """Gradients of loops that stop by a condition, beside Equinox's."""
    console, others = Console(width=120), Others()
    tables = [measure(loop, rounds) for loop in loops()]
    for table in tables:
        console.print(table)
    if write is not None:
        machine = describe_machine("float32")
        lines = "\n".join(f"- {heading}: {text}" for heading, text in machine.items())
        written = "\n\n".join(map(_markdown, tables))
        page = PAGE.format(rounds=rounds, far=FAR, machine=lines, tables=written)
        write.write_text(with_condition(page, machine, others.sentence()))


if __name__ == "__main__":
    typer.run(main)
