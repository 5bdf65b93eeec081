"""A training run that a test kills: `killed_run.py DIRECTORY STEPS CHECKPOINT_EVERY`."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnnscan as rs
from rnnscan import cells
from rnnscan.train import RunDirectory, TrainState, begin, fit, make_step


CELL = cells.GRU(4)
OPTIMIZER = optax.adam(1e-2)
WINDOWS = 7  # in an epoch


def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
    noise = 0.1 * jax.random.normal(key, batch.shape)
    carry, outputs = rs.scan(CELL, params, carry, batch + noise)
    return jnp.mean((outputs - 0.3) ** 2), carry


STEP = make_step(loss, OPTIMIZER, clip_norm=1.0)


def batch_at(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(3, 2, 2)).astype(np.float32)


def initial() -> TrainState:
    return begin(CELL.init(jax.random.key(0), 2), OPTIMIZER, carry=CELL.initial_carry(jnp.zeros((2, 2))), seed=1)


def train(run: RunDirectory, steps: int, checkpoint_every: int) -> TrainState:
    """Begin the run, or go on with it."""
    start = CELL.initial_carry(jnp.zeros((2, 2)))
    return fit(
        STEP,
        run.restore(initial()),
        batch_at,
        steps=steps,
        carry_at=lambda step, carry: start if step % WINDOWS == 0 else carry,
        run=run,
        checkpoint_every=checkpoint_every,
        progress=False,
    )


if __name__ == "__main__":
    train(RunDirectory(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
