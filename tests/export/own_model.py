"""A model with a cell of its own, trained; the process that loads its export has not this code."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs


@dataclass(frozen=True)
class PeepholeCell:
    """An LSTM whose forget gate sees its state."""

    size: int

    def init(self, key: Any, input_size: int) -> Any:
        keys = jax.random.split(key, 3)
        return {
            "kernel": 0.3 * jax.random.normal(keys[0], (input_size + self.size, 4 * self.size)),
            "bias": 0.3 * jax.random.normal(keys[1], (4 * self.size,)),
            "peephole": 0.3 * jax.random.normal(keys[2], (self.size,)),
        }

    def initial_carry(self, x: Any) -> Any:
        zeros = jnp.zeros((*x.shape[:-1], self.size), x.dtype)
        return {"hidden": zeros, "cell": zeros}

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        joined = jnp.concatenate([x, carry["hidden"]], axis=-1)
        gates = rs.name(joined @ params["kernel"] + params["bias"], "gates")
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        f = jax.nn.sigmoid(f + params["peephole"] * carry["cell"])
        cell = f * carry["cell"] + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return {"hidden": hidden, "cell": cell}, hidden


CELL = PeepholeCell(4)


def run(params: Any, xs: Any, engine: Any = "auto") -> Any:
    carry = CELL.initial_carry(xs[0])
    carry, ys = rs.scan(CELL, params, carry, xs, memory=rs.Memory(recompute="all"), engine=engine)
    return {"carry": carry, "ys": ys}


def by_lax(params: Any, xs: Any) -> Any:
    return run(params, xs, engine="lax")


def sequence(steps: int, rows: int) -> Any:
    return np.random.default_rng(steps + rows).normal(size=(steps, rows, 3)).astype(np.float32)


def trained() -> Any:
    xs = sequence(9, 8)

    def loss(params: Any) -> Any:
        return jnp.mean((run(params, xs)["ys"] - jnp.cumsum(xs, axis=0).mean(axis=-1, keepdims=True)) ** 2)

    @jax.jit
    def step(params: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda leaf, gradient: leaf - 0.3 * gradient, params, gradients), value

    params, losses = CELL.init(jax.random.key(0), 3), []
    for _ in range(20):
        params, value = step(params)
        losses.append(value)
    assert losses[-1] < 0.9 * losses[0]
    return params
