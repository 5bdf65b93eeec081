"""Engines side by side: time, kept bytes and peak temporary bytes of an LSTM's and a GRU's loss and gradient.

Run as `python benchmarks/engines.py`. All rows of a table are compiled first and then take turns; a ratio is the median
over the rounds of its time by that of plain autodiff in the same round.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import rnnscan as rs
from rnnscan.insight import kept_bytes, temporary_bytes
from rnnscan.insight.tradeoff import readable_bytes


ROUNDS = 9
WORKLOADS = {
    "LSTM (128, 32, 128, 256)": (rs.cells.LSTM(256), 128, 32, 128),
    "LSTM (512, 16, 64, 128)": (rs.cells.LSTM(128), 512, 16, 64),
    "LSTM (256, 64, 256, 512)": (rs.cells.LSTM(512), 256, 64, 256),
    "GRU (128, 32, 128, 256)": (rs.cells.GRU(256), 128, 32, 128),
}
CHOICES: dict[str, dict[str, Any]] = {
    "plain autodiff": {"memory": None},
    "lax, every name": {"memory": rs.Memory()},
    "lax, recompute all": {"memory": rs.Memory(recompute="all")},
    "fission, every name": {"memory": rs.Memory(), "engine": "fission"},
    "fission, recompute all": {"memory": rs.Memory(recompute="all"), "engine": "fission"},
}


def loss_of(cell: Any, options: dict[str, Any]) -> Callable[[Any, Any], jax.Array]:
    def loss(params: Any, xs: jax.Array) -> jax.Array:
        ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)[1]
        return jnp.sum(ys * ys)

    return loss


def measure(cell: Any, length: int, batch: int, features: int) -> list[tuple[str, ...]]:
    params_key, xs_key = jax.random.split(jax.random.key(0))
    arguments = (cell.init(params_key, features), jax.random.normal(xs_key, (length, batch, features)))
    losses = {choice: loss_of(cell, options) for choice, options in CHOICES.items()}
    compiled = {choice: jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).compile() for choice, loss in losses.items()}
    rounds = [{choice: seconds(run, arguments) for choice, run in compiled.items()} for _ in range(ROUNDS + 1)][1:]
    return [
        (
            choice,
            f"{median(times[choice] / times['plain autodiff'] for times in rounds):.2f}",
            f"{1000 * median(times[choice] for times in rounds):.0f} ms",
            readable_bytes(kept_bytes(losses[choice], *arguments)),
            readable_bytes(temporary_bytes(compiled[choice]) or 0),
        )
        for choice in CHOICES
    ]


def seconds(run: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start


def main() -> None:
    console = Console(highlight=False)
    console.print(f"jax {jax.__version__} on {jax.default_backend()}; shapes are (T, N, D, H), float32")
    for workload, arguments in WORKLOADS.items():
        table = Table("choice", "of plain", "time", "kept", "temporary", title=workload, title_justify="left")
        for row in measure(*arguments):
            table.add_row(*row)
        console.print(table)


if __name__ == "__main__":
    main()
