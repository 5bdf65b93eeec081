"""The time of small loops: `python -m benchmarks.small_loops uses` and `python -m benchmarks.small_loops versions`.

`uses` has plain `lax.scan`, rnnscan and compiled programs of other libraries, for docs/benchmarks_of_small_loops.md.
`versions` has plain `lax.scan` with the jax that is installed; docs/versions.md has the figures of two. Both measure
processor time, so they can run beside other programs.
"""

import datetime
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from jax import Array, lax
from rich.console import Console

import rnnscan as rs
from benchmarks import small_peers, small_uses
from benchmarks.app import known
from benchmarks.machine import describe_machine
from benchmarks.others import Others
from benchmarks.small_page import with_section
from benchmarks.small_steps import USES
from benchmarks.table import markdown_table, rich_table


STEPS = 10_000
Step = Callable[[Any, Any, Array], tuple[Any, Array]]


def tanh(params: Any, carry: Array, x: Array) -> tuple[Array, Array]:
    """A step of one kernel."""
    carry = jnp.tanh(0.9 * carry + x)
    return carry, carry


def uniform(params: Any, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    """A step that draws a number."""
    key, total = carry
    key, of_step = jax.random.split(key)
    total = 0.9 * total + jax.random.uniform(of_step, total.shape) + x
    return (key, total), total


def kalman(params: Any, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    """A Kalman filter of four states that are seen as one."""
    mean, covariance = carry
    transition = 0.9 * jnp.eye(4) + 0.01
    covariance = transition @ covariance @ transition.T + jnp.eye(4)
    gain = covariance[:, 0] / (covariance[0, 0] + 1)
    mean = transition @ mean
    mean = mean + gain * (x[0] - mean[0])
    return (mean, covariance - jnp.outer(gain, covariance[0])), mean


def of_cell(cell: Any) -> tuple[Step, Any, Any]:
    """A cell of the library, its parameters and its carry, for one row."""
    params = cell.init(jax.random.key(0), input_size=4)
    return cell, params, cell.initial_carry(jnp.zeros(4))


LOOPS: dict[str, Callable[[], tuple[Step, Any, Any]]] = {
    "tanh of 4 values": lambda: (tanh, None, jnp.ones(4)),
    "GRU of 4 units": lambda: of_cell(rs.cells.GRU(4)),
    "LSTM of 4 units": lambda: of_cell(rs.cells.LSTM(4)),
    "LSTM of 16 units": lambda: of_cell(rs.cells.LSTM(16)),
    "4 uniform numbers": lambda: (uniform, None, (jax.random.key(0), jnp.ones(4))),
    "Kalman filter of 4 states": lambda: (kalman, None, (jnp.ones(4), jnp.eye(4))),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def uses(
    name: Annotated[list[str] | None, typer.Option(help="a use; may be repeated; all without it")] = None,
    steps: Annotated[int, typer.Option(min=1)] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="the least number of rounds")] = 9,
    flag: Annotated[bool, typer.Option("--flag", help="let XLA compile larger loops to one kernel")] = False,
    peers: Annotated[bool, typer.Option(help="other libraries too")] = True,
    write: Annotated[Path | None, typer.Option(help="a Markdown page, for a section with the results")] = None,
) -> None:
    """Plain `lax.scan`, rnnscan and other libraries."""
    names = known(name or list(USES), USES, "--name")
    if flag:
        small_uses.set_flag()
    console, others = Console(highlight=False, width=150), Others()
    results = {}
    for use in filter(names.__contains__, USES):
        with console.status(use):
            results[use] = small_uses.measure(use, steps, rounds)
    tables = [(small_uses.HEADINGS, small_uses.table_rows(results))]
    if peers:
        tables.append((small_peers.HEADINGS, [*small_peers.rows_of_peers(steps, rounds)]))
    title = f"jax {jax.__version__}, {'with' if flag else 'without'} the flag"
    for headings, rows in tables:
        console.print(rich_table(f"{title}: {steps:,} steps, processor time", headings, rows))
    load = others.sentence()
    console.print(load)
    if write is not None:
        parts = [_condition(steps, load), *(markdown_table(*table) for table in tables)]
        write.write_text(with_section(write.read_text() if write.exists() else "", title, "\n\n".join(parts)))
        console.print(f"written to {write}")


@app.command()
def versions(
    steps: Annotated[int, typer.Option(min=1)] = STEPS,
    calls: Annotated[int, typer.Option(min=1, help="calls of each loop")] = 15,
) -> None:
    """The processor time of small loops of plain `lax.scan`."""
    rows = [(name, *(f"{1000 * seconds:.2f}" for seconds in seconds_of(name, steps, calls))) for name in LOOPS]
    title = f"jax {jax.__version__}: {steps:,} steps, ms of processor time"
    Console(highlight=False).print(rich_table(title, ("loop", "forward", "gradient"), rows))


def seconds_of(name: str, steps: int, calls: int) -> list[float]:
    """The least time of the loop, and of the gradient of its outputs by its inputs."""
    step, params, carry = LOOPS[name]()
    xs = jnp.full((steps, 4), 0.01)

    def run(xs: Array) -> Array:
        return lax.scan(partial(step, params), carry, xs)[1]

    def loss(xs: Array) -> Array:
        return jnp.sum(run(xs) ** 2)

    return [min(_times(jax.jit(function), xs, calls)) for function in (run, jax.grad(loss))]


def _condition(steps: int, load: str) -> str:
    """A sentence on versions, date and machine."""
    versions = f"rnnscan {version('rnnscan')}, jax {jax.__version__} and Python {platform.python_version()}"
    machine = describe_machine(None)["machine"]
    return f"Measured with {versions} on {datetime.date.today()}: {steps:,} steps on {machine}. {load}"


def _times(function: Callable[[Array], Array], xs: Array, calls: int) -> list[float]:
    jax.block_until_ready(function(xs))
    times = []
    for _ in range(calls):
        before = time.process_time()
        jax.block_until_ready(function(xs))
        times.append(time.process_time() - before)
    return times


if __name__ == "__main__":
    app()
