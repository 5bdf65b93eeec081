"""MNIST-1D: a bidirectional GRU of 6 units over 40 steps, and a linear readout of all of them."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from mnist1d.data import get_dataset_args, make_dataset

import rnnscan as rs
from benchmarks.papers.result import Figure, absent, installed, named
from benchmarks.papers.training import train, trainer


UNITS = 6
NET = rs.bidirectional(rs.cells.GRU(UNITS))
STEPS, BATCH, RATE, SEEDS = 6000, 100, 1e-2, 3
TIMED_STEPS, ROUNDS = 200, 7
SOURCE = "Greydanus and Kobak 2024, the GRU of its code"


def figures() -> Iterator[Figure]:
    """The test accuracy after the published training, the mean over seeds, and the time of 1,000 steps."""
    data = make_dataset(get_dataset_args())
    train_set, test_set = _arrays(data["x"], data["y"]), _arrays(data["x_test"], data["y_test"])
    started, accuracies = time.perf_counter(), []
    for seed in range(SEEDS):
        params = train(_loss, _init(jax.random.key(seed)), _draw(train_set), steps=STEPS, rate=RATE, seed=seed)
        xs, labels = test_set
        accuracies.append(float((_logits(params, xs).argmax(-1) == labels).mean()))
    seconds = (time.perf_counter() - started) / SEEDS
    mean, parameters = float(np.mean(accuracies)), sum(leaf.size for leaf in jax.tree.leaves(params))
    task = f"MNIST-1D, bidirectional GRU of 6 units, {parameters:,} parameters"
    shown = f"{100 * mean:.1f} % ({', '.join(f'{100 * each:.1f}' for each in accuracies)})"
    yield Figure(task, "test accuracy after 6,000 steps", "86 to 91 %", shown, mean >= 0.86, seconds, SOURCE)
    per_thousand = seconds / (STEPS / 1000)
    yield Figure(
        task, "time of 1,000 steps", "23 to 28 s, in torch", f"{per_thousand:.1f} s", per_thousand < 28, seconds, SOURCE
    )
    yield _beside_torch(task, train_set)


def _beside_torch(task: str, train_set: tuple[jax.Array, jax.Array]) -> Figure:
    """The medians of blocks of steps that alternate in this run, after one block of each that warms up."""
    started = time.perf_counter()
    runs: dict[str, Callable[[int], Any]] = {
        "rnnscan": trainer(_loss, _init(jax.random.key(0)), _draw(train_set), rate=RATE)
    }
    if installed("torch"):
        from benchmarks.papers.mnist1d_torch import torch_trainer

        arrays = [np.asarray(array) for array in train_set]
        runs["torch"] = torch_trainer(*arrays, units=UNITS, batch=BATCH, rate=RATE)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + ROUNDS):
        for name, run in runs.items():
            begun = time.perf_counter()
            run(TIMED_STEPS)
            times[name].append(time.perf_counter() - begun)
    medians = {name: float(np.median(each[1:])) * 1000 / TIMED_STEPS for name, each in times.items()}
    theirs = medians.get("torch")
    return Figure(
        task,
        "time of 1,000 steps, beside torch in this run",
        absent("torch") if theirs is None else f"{theirs:.1f} s, in torch",
        f"{medians['rnnscan']:.1f} s",
        None if theirs is None else medians["rnnscan"] <= theirs,
        time.perf_counter() - started,
        f"{'torch' if theirs is None else named('torch')} on one thread; medians of {ROUNDS} times {TIMED_STEPS} steps",
    )


def _arrays(xs: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(xs, jnp.float32).T[..., None], jnp.asarray(labels)  # time, rows, one feature


def _init(key: jax.Array) -> Any:
    of_net, of_head = jax.random.split(key)
    features = 40 * NET.output_size
    kernel = jax.nn.initializers.lecun_uniform()(of_head, (features, 10))
    return {"net": NET.init(of_net, input_size=1), "kernel": kernel, "bias": jnp.zeros(10)}


def _logits(params: Any, xs: jax.Array) -> jax.Array:
    _, ys = NET(params["net"], xs)
    return ys.swapaxes(0, 1).reshape(xs.shape[1], -1) @ params["kernel"] + params["bias"]


def _loss(params: Any, batch: Any) -> jax.Array:
    xs, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(_logits(params, xs), labels).mean()


def _draw(data: tuple[jax.Array, jax.Array]) -> Any:
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = jax.random.choice(key, data[1].shape[0], (BATCH,), replace=False)
        return data[0][:, rows], data[1][rows]

    return draw
