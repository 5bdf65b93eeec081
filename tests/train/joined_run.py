"""A training run of several processes: `joined_run.py DIRECTORY STEPS PORT PROCESSES ID HEARTBEAT`.

It prints what it refuses, and marks in the directory that all have joined.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rnnscan as rs
from rnnscan import cells
from rnnscan.train import (
    RunDirectory,
    TrainState,
    begin,
    fit,
    join_processes,
    make_mesh,
    make_step,
    place_state,
    processes,
)


CELL = cells.GRU(4)
OPTIMIZER = optax.adam(1e-2)
ROWS = 4


def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
    carry, outputs = rs.scan(CELL, params, carry, batch + 0.1 * jax.random.normal(key, batch.shape))
    return jnp.mean((outputs - 0.3) ** 2), carry


STEP = make_step(loss, OPTIMIZER, clip_norm=1.0)


def own_batch(step: int) -> np.ndarray:
    """The rows of this process."""
    batch = np.random.default_rng(step).normal(size=(3, ROWS, 2)).astype(np.float32)
    return np.split(batch, jax.process_count(), axis=1)[jax.process_index()]


def local() -> TrainState:
    """The state before the first step, on a device of this process."""
    return begin(CELL.init(jax.random.key(0), 2), OPTIMIZER, carry=CELL.initial_carry(jnp.zeros((ROWS, 2))), seed=1)


def initial(mesh: Mesh) -> TrainState:
    return place_state(local(), OPTIMIZER, mesh, jax.tree.map(lambda _: PartitionSpec(), local().params))


def train(run: RunDirectory, steps: int) -> TrainState:
    """Begin the run, or resume it."""
    mesh = make_mesh({"data": jax.device_count()})
    rows = NamedSharding(mesh, PartitionSpec(None, "data"))

    def batch_at(step: int) -> jax.Array:
        return jax.make_array_from_process_local_data(rows, own_batch(step))

    return fit(STEP, run.restore(initial(mesh)), batch_at, steps=steps, run=run, checkpoint_every=5, progress=False)


def print_refused(run: RunDirectory) -> None:
    """Print the errors for a state and a batch that are not on all devices."""
    mesh = make_mesh({"data": jax.device_count()})
    for state in (local(), initial(mesh)):
        try:
            fit(STEP, state, own_batch, steps=1, run=run, progress=False)
        except ValueError as error:
            print(error)


if __name__ == "__main__":
    directory, steps, port, count, number, processes.HEARTBEAT = sys.argv[1], *map(int, sys.argv[2:])
    join_processes(f"localhost:{port}", count, number)
    run = RunDirectory(Path(directory))
    if count > 1 and not run.latest_step():
        print_refused(run)
    if number == 0:
        Path(directory).mkdir(exist_ok=True)
        Path(directory, f"joined.{port}").touch()
    train(run, steps)
