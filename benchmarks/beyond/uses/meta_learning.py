"""Training in a scan: gradients through the steps of an inner optimizer.

"maml-sgd": p' = p - r * grad, with a learned rate r for each leaf. "maml-adam": Adam's update, with its averages and
its count in the carry.

Sources: Finn et al. 2017, "Model-Agnostic Meta-Learning"; Li et al. 2017, "Meta-SGD"; Kingma and Ba 2015, "Adam",
algorithm 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def sgd_cell(rates: Any, weights: Any, batch: tuple[Array, Array]) -> tuple[Any, Array]:
    """Carry: the weights. Input: a batch (N, D) and its targets (N, O)."""
    loss, gradient = jax.value_and_grad(_loss)(weights, batch)
    return jax.tree.map(lambda one, rate, slope: one - jnp.exp(rate) * slope, weights, rates, gradient), loss


def adam_cell(rates: Any, carry: Any, batch: tuple[Array, Array]) -> tuple[Any, Array]:
    """Carry: the weights, the averages of the gradient and of its square, and the number of steps."""
    weights, first, second, count = carry
    loss, gradient = jax.value_and_grad(_loss)(weights, batch)
    count = count + 1
    first = jax.tree.map(lambda average, slope: 0.9 * average + 0.1 * slope, first, gradient)
    second = jax.tree.map(lambda average, slope: 0.99 * average + 0.01 * slope**2, second, gradient)
    scale = jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)

    def update(one: Array, rate: Array, first: Array, second: Array) -> Array:
        return one - jnp.exp(rate) * scale * first / (jnp.sqrt(second) + 1e-3)

    return (jax.tree.map(update, weights, rates, first, second), first, second, count), loss


def _loss(weights: Any, batch: tuple[Array, Array]) -> Array:
    inputs, targets = batch
    hidden = jnp.tanh(inputs @ weights["kernel_in"] + weights["bias_in"])
    hidden = jnp.tanh(hidden @ weights["kernel"] + weights["bias"])
    return jnp.mean((hidden @ weights["kernel_out"] - targets) ** 2)


def _make(draw: Draw, *, steps: int, rows: int, features: int, hidden: int, adam: bool) -> Problem:
    weights = {
        "kernel_in": draw.kernel(features, hidden),
        "bias_in": draw(hidden),
        "kernel": draw.kernel(hidden, hidden),
        "bias": draw(hidden),
        "kernel_out": draw.kernel(hidden, features),
    }
    rates = {name: draw(scale=0.1) - (5 if adam else 2) for name in weights}
    xs = draw(steps, rows, features), draw(steps, rows, features)
    if not adam:
        return Problem(one_scan(sgd_cell), rates, weights, xs)
    first = {name: draw(*leaf.shape, scale=0.1) for name, leaf in weights.items()}
    second = {name: draw.uniform(*leaf.shape, low=0.01, high=0.1) for name, leaf in weights.items()}
    return Problem(one_scan(adam_cell), rates, (weights, first, second, jnp.int32(3)), xs)


SIZES = {"steps": 20, "rows": 32, "features": 32, "hidden": 128}
TINY = {"steps": 3, "rows": 2, "features": 2, "hidden": 3}

USES = {
    "maml-sgd": Use("MAML, SGD", _make, SIZES | {"adam": False}, TINY | {"adam": False}, 1e-3),
    "maml-adam": Use("MAML, Adam", _make, SIZES | {"adam": True}, TINY | {"adam": True}, 1e-3),
}
