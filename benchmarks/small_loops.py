"""The time of small loops of plain `lax.scan` with the jax that is installed: `python -m benchmarks.small_loops`.

docs/versions.md has the figures of two versions. It is the least processor time of several calls, so it can be measured
beside other programs.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from jax import Array, lax
from rich.console import Console

import rnnscan as rs
from benchmarks.table import rich_table


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
def main(
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
