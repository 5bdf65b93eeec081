"""Linear attention that corrects what its state (K, V) reads, by the delta rule.

    S' = a S + b k (v - (a S)^T k)^T,  y = S'^T q,  |k| = 1,  b = sigmoid(.)

"deltanet": a = 1. "gated-deltanet": a is a gate. "test-time-training": the same step as the gradient of a loss that the
cell differentiates, |S^T k - v|^2 / 2.

Sources: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule", equation 1; Yang et al. 2025, "Gated
Delta Networks", equation 10; Sun et al. 2024, "Learning to (Learn at Test Time)", section 2.1.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def delta_cell(params: Any, state: Array, x: Any) -> tuple[Array, Array]:
    """Carry: S (N, heads, K, V). `params`: the bias of b for each head."""
    query, key, value, rate, _ = x
    return _corrected(state, query, _unit(key), value, jax.nn.sigmoid(rate + params[0]))


def gated_cell(params: Any, state: Array, x: Any) -> tuple[Array, Array]:
    """The same with a gate. `params`: the biases of b and a."""
    query, key, value, rate, gate = x
    decay = jax.nn.sigmoid(gate + params[1])
    return _corrected(decay[..., None, None] * state, query, _unit(key), value, jax.nn.sigmoid(rate + params[0]))


def training_cell(params: Any, state: Array, x: Any) -> tuple[Array, Array]:
    """The same by `jax.grad`."""
    query, key, value, rate, _ = x
    key = _unit(key)

    def loss(state: Array) -> Array:
        return jnp.sum((_read(key, state) - value) ** 2) / 2

    state = state - jax.nn.sigmoid(rate + params[0])[..., None, None] * jax.grad(loss)(state)
    return state, _read(query, state)


def _corrected(state: Array, query: Array, key: Array, value: Array, rate: Array) -> tuple[Array, Array]:
    error = rate[..., None] * (value - _read(key, state))
    state = state + key[..., None] * error[..., None, :]
    return state, _read(query, state)


def _read(query: Array, state: Array) -> Array:
    return jnp.einsum("nhk,nhkv->nhv", query, state)


def _unit(key: Array) -> Array:
    return key * jax.lax.rsqrt(jnp.sum(key**2, -1, keepdims=True) + 1e-6)


def _make(cell: Any) -> Any:
    def make(draw: Draw, *, steps: int, rows: int, heads: int, keys: int, values: int) -> Problem:
        shapes = (heads, keys), (heads, keys), (heads, values), (heads,), (heads,)
        xs = tuple(draw(steps, rows, *shape) for shape in shapes)
        biases = draw(2, heads) + jnp.asarray([[0.0], [3.0]], float)
        return Problem(one_scan(cell), biases, draw(rows, heads, keys, values), xs)

    return make


SIZES = {"steps": 64, "rows": 4, "heads": 4, "keys": 64, "values": 64}
TINY = {"steps": 5, "rows": 2, "heads": 2, "keys": 3, "values": 4}

USES = {
    "deltanet": Use("DeltaNet", _make(delta_cell), SIZES, TINY),
    "gated-deltanet": Use("gated DeltaNet", _make(gated_cell), SIZES, TINY),
    "test-time-training": Use("test-time training, a linear model", _make(training_cell), SIZES, TINY),
}
