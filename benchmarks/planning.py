"""The planned choice against the fastest that fits, and long sequences with a loss on the last state.

python -m benchmarks.planning
"""

import time
from collections.abc import Callable, Iterator
from itertools import combinations
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import rnnscan as rs
from rnnscan import cells
from rnnscan._util.byte_sizes import readable_bytes
from rnnscan.insight import kept_bytes, measure_losses, temporary_bytes
from rnnscan.insight.tradeoff import choice_name
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import choices_of
from rnnscan.planning.training_step import TrainingStep


# Cell, steps, rows, features: small enough to run every choice.
SMALL = [
    (cells.LSTM(48), 96, 8, 24),
    (cells.GRU(48), 96, 8, 24),
    (cells.LayerNormLSTM(32), 64, 4, 16),
    (cells.MinGRU(64), 128, 4, 32),
]
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15)
ROUNDS = 40


def every_choice(names: tuple[str, ...], length: int) -> Iterator[rs.Memory]:
    """Names x segment x chunk."""
    subsets = [subset for count in range(len(names)) for subset in combinations(names, count)]
    for recompute in [*subsets, "all"]:
        yield from (rs.Memory(recompute=recompute, chunk=chunk) for chunk in (None, 4, 16))
        sizes = [size for size in range(4, length) if length % size == 0]
        yield from (rs.Memory(recompute=recompute, segment=size) for size in sizes)
        yield rs.Memory(recompute=recompute, segment=(length // 2, length // 8))


def timed(runs: list[Callable[[], Any]]) -> list[float]:
    """The median seconds of each, alternating."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, taken in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [median(taken) for taken in seconds]


def compare_with_every_choice(cell: Any, length: int, batch: int, features: int, table: Table) -> None:
    xs = jax.random.normal(jax.random.key(1), (length, batch, features))
    params, carry = cell.init(jax.random.key(0), features), cell.initial_carry(xs[0])
    given = Arguments(rs.scan, cell, params, carry, xs, {})
    step = TrainingStep(given, last_only=False)
    planned = [one.memory for one in choices_of(given)]
    choices = list(dict.fromkeys([*every_choice(cell.names, length), *planned]))
    runs, needs = [], {}
    for memory in choices:
        loss, given = step.build(memory)
        gradient = jax.jit(jax.grad(loss, argnums=tuple(range(len(given))))).lower(*given).compile()
        runs.append(lambda gradient=gradient, given=given: jax.block_until_ready(gradient(*given)))
        needs[memory] = temporary_bytes(gradient) or 0
    seconds = dict(zip(choices, timed(runs), strict=True))
    for share in SHARES:
        budget = share * max(needs.values())
        fitting = [memory for memory in choices if needs[memory] <= budget]
        chosen = next((memory for memory in planned if needs[memory] <= budget), None)
        if chosen is None:
            continue
        best = min(fitting, key=seconds.__getitem__)
        ratio = seconds[chosen] / seconds[best]
        table.add_row(repr(cell), readable_bytes(int(budget)), choice_name(chosen), choice_name(best), f"{ratio:.2f}")


def last_state(table: Table) -> None:
    """LSTM, T = 1000, N = 32, H = 256, loss on the last state; kept bytes exclude the input."""
    cell, features = cells.LSTM(256), 128
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(1000, 32, features)), jnp.float32)
    params, carry = cell.init(jax.random.key(0), features), cell.initial_carry(xs[0])

    def build(memory: rs.Memory | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (lambda params: jnp.sum(jnp.sin(rs.scan(cell, params, carry, xs, memory=memory)[0][0]))), (params,)

    choices = {
        "plain autodiff": None,
        "segment 40": rs.Memory(segment=40),
        "segment 40, recompute all": rs.Memory(recompute="all", segment=40),
    }
    plain = kept_bytes(build(None)[0], params) - xs.nbytes
    for row in measure_losses(build, choices, rounds=5):
        kept = (row.kept_bytes - xs.nbytes) / plain
        temporary = readable_bytes(row.temporary_bytes or 0)
        table.add_row(row.choice, f"{kept:.3f}", temporary, f"{row.relative_time:.2f}")


def main() -> None:
    console = Console()
    long = Table(
        "choice", "kept of plain", "temporary", "time of plain", title="LSTM, 1000 steps, loss on the last state"
    )
    last_state(long)
    console.print(long)
    every = Table("cell", "budget", "planned", "fastest that fits", "time, planned / fastest")
    for case in SMALL:
        compare_with_every_choice(*case, every)
        console.print(every)


if __name__ == "__main__":
    main()
