"""Few steps, each of them large.

"large-steps": h' = tanh(h W + x), W (D, D). "layers": a Transformer block for each step, whose weights are the inputs:
the way to compile a deep network once. "gradient-accumulation": the gradients of a loss over several small batches are
summed in the carry.

Sources: `lax.scan` over layers as in MaxText and in Flax's `nn.scan`; He et al. 2016 for the residual blocks.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def large_cell(params: Any, carry: Array, x: Array) -> tuple[Array, Array]:
    """Carry: h (N, D)."""
    carry = jnp.tanh(carry @ params["kernel"] + params["bias"] + x)
    return carry, carry


def layer_cell(params: Any, hidden: Array, layer: Any) -> tuple[Array, Array]:
    """Carry: activations (N, L, E). Input: the weights of a layer."""
    normal = _normalise(hidden) * layer["scale"]
    query, key, value = (normal @ layer[name] for name in ("query", "key", "value"))
    weights = jax.nn.softmax(query @ jnp.swapaxes(key, 1, 2) / hidden.shape[-1] ** 0.5)
    hidden = hidden + params["gain"] * (weights @ value)
    hidden = hidden + jax.nn.gelu(_normalise(hidden) @ layer["kernel_in"]) @ layer["kernel_out"]
    return hidden, jnp.mean(hidden, (0, 1))


def accumulation_cell(params: Any, total: Any, x: tuple[Array, Array]) -> tuple[Any, Array]:
    """Carry: the sum of the gradients. Input: a batch (N, D) and its labels (N, C)."""

    def loss(params: Any) -> Array:
        hidden = jnp.tanh(x[0] @ params["kernel_in"] + params["bias_in"])
        return -jnp.mean(jnp.sum(jax.nn.softmax(x[1]) * jax.nn.log_softmax(hidden @ params["kernel_out"]), -1))

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(jnp.add, total, gradient), value


def _normalise(hidden: Array) -> Array:
    centred = hidden - jnp.mean(hidden, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6)


def _make_large(draw: Draw, *, steps: int, rows: int, features: int) -> Problem:
    params = {"kernel": draw.kernel(features, features), "bias": draw(features)}
    return Problem(one_scan(large_cell), params, draw(rows, features), draw(steps, rows, features))


def _make_layers(draw: Draw, *, steps: int, rows: int, positions: int, features: int) -> Problem:
    layers = {name: draw.kernel(steps, features, features) for name in ("query", "key", "value")}
    layers |= {"scale": 1 + draw(steps, features, scale=0.1), "kernel_in": draw.kernel(steps, features, 4 * features)}
    layers |= {"kernel_out": 0.2 * draw.kernel(steps, 4 * features, features)}
    return Problem(one_scan(layer_cell), {"gain": draw.uniform(features)}, draw(rows, positions, features), layers)


def _make_accumulation(draw: Draw, *, steps: int, rows: int, features: int, hidden: int, classes: int) -> Problem:
    shapes = {"kernel_in": (features, hidden), "bias_in": (1, hidden), "kernel_out": (hidden, classes)}
    params, total = ({name: draw.kernel(*shape) for name, shape in shapes.items()} for _ in range(2))
    xs = draw(steps, rows, features), draw(steps, rows, classes)
    return Problem(one_scan(accumulation_cell), params, total, xs)


USES = {
    "large-steps": Use(
        "large steps",
        _make_large,
        {"steps": 6, "rows": 16, "features": 1536},
        {"steps": 3, "rows": 2, "features": 5},
    ),
    "layers": Use(
        "layers of a Transformer",
        _make_layers,
        {"steps": 8, "rows": 2, "positions": 64, "features": 128},
        {"steps": 3, "rows": 2, "positions": 3, "features": 4},
    ),
    "gradient-accumulation": Use(
        "gradient accumulation",
        _make_accumulation,
        {"steps": 16, "rows": 32, "features": 128, "hidden": 256, "classes": 16},
        {"steps": 3, "rows": 2, "features": 3, "hidden": 4, "classes": 3},
    ),
}
