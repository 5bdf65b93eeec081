"""The adding and the copying problem, beside what a model without memory gets."""

import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import rnnscan as rs
from benchmarks.papers.result import Figure
from benchmarks.papers.training import train


ADDING_STEPS, COPYING_DELAY, BATCH = 100, 20, 64
SOURCE = "Hochreiter and Schmidhuber 1997; Arjovsky, Shah and Bengio 2016"


def figures() -> Iterator[Figure]:
    """The losses after training, which must be below those without memory."""
    yield _adding()
    yield _copying()


def _adding() -> Figure:
    """The sum of two marked numbers in [0, 1). Without memory the best answer is 1, with a squared error of 1/6."""

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_values, *of_marks = jax.random.split(key, 3)
        values = jax.random.uniform(of_values, (ADDING_STEPS, BATCH))
        half = ADDING_STEPS // 2
        places = [
            jax.random.randint(one, (BATCH,), begin, begin + half)
            for one, begin in zip(of_marks, (0, half), strict=True)
        ]
        marks = sum(jax.nn.one_hot(place, ADDING_STEPS).T for place in places)
        return jnp.stack([values, marks], axis=-1), (values * marks).sum(0)

    def loss(params: Any, batch: Any) -> jax.Array:
        xs, targets = batch
        (hidden, _), _ = net(params["net"], xs)
        return jnp.mean((hidden @ params["kernel"] + params["bias"] - targets) ** 2)

    net = rs.layer(rs.cells.LSTM(64))
    params = {"net": net.init(jax.random.key(0), input_size=2), "kernel": jnp.zeros(64), "bias": jnp.ones(())}
    started = time.perf_counter()
    params = train(loss, params, draw, steps=3000, rate=3e-3, clip=1.0)
    reached = float(loss(params, draw(jax.random.key(1000))))
    return Figure(
        f"adding problem, {ADDING_STEPS} steps, LSTM of 64 units",
        "mean squared error",
        "0.167 without memory",
        f"{reached:.4f}",
        reached < 1 / 6,
        time.perf_counter() - started,
        SOURCE,
    )


def _copying() -> Figure:
    """Ten letters of eight, repeated after a delay. Without memory the loss is 10 log 8 / (T + 20)."""
    letters, length = 8, 10
    steps = COPYING_DELAY + 2 * length

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        text = jax.random.randint(key, (length, BATCH), 1, letters + 1)
        blank = jnp.zeros((COPYING_DELAY, BATCH), int)
        signal = jnp.full((1, BATCH), letters + 1)
        xs = jnp.concatenate([text, blank[:-1], signal, jnp.zeros((length, BATCH), int)])
        return jax.nn.one_hot(xs, letters + 2), jnp.concatenate([jnp.zeros((steps - length, BATCH), int), text])

    def loss(params: Any, batch: Any) -> jax.Array:
        xs, targets = batch
        _, ys = net(params["net"], xs)
        logits = ys @ params["kernel"] + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    net = rs.layer(rs.cells.GRU(128))
    params = {
        "net": net.init(jax.random.key(0), input_size=letters + 2),
        "kernel": jnp.zeros((128, letters + 1)),
        "bias": jnp.zeros(letters + 1),
    }
    started = time.perf_counter()
    params = train(loss, params, draw, steps=4000, rate=3e-3, clip=1.0)
    reached, memoryless = float(loss(params, draw(jax.random.key(1000)))), length * math.log(letters) / steps
    return Figure(
        f"copying problem, a delay of {COPYING_DELAY} steps, GRU of 128 units",
        "cross entropy",
        f"{memoryless:.3f} without memory",
        f"{reached:.4f}",
        reached < memoryless,
        time.perf_counter() - started,
        SOURCE,
    )
