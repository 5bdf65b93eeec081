"""Runs cells with their units on 4 of 8 simulated devices, and on one: `python units_of_cells.py CELLS`, as JSON.

It prints, as JSON, for each cell the largest difference in values and gradients.
"""

import json
import os
import sys

from xla_flags import flags


os.environ["XLA_FLAGS"] = flags(devices=8)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import rnnscan as rs
from drawn import normal
from rnnscan import cells


STEPS, ROWS, UNITS = 4, 6, 8


class Own:
    """A cell with gates of two sizes, a name on all of them, and a parameter that is read in two ways."""

    def init(self, key, input_size):
        first, second = jax.random.split(key)
        return {
            "w": jax.random.normal(first, (input_size + UNITS, 4 * UNITS)),
            "b": jax.random.normal(second, (UNITS,)),
        }

    def initial_carry(self, x):
        return jnp.zeros((*x.shape[:-1], UNITS), x.dtype)

    def __call__(self, params, carry, x):
        gates = rs.name(jnp.concatenate([x, carry], axis=-1) @ params["w"], "gates")
        wide, keep = jax.nn.sigmoid(gates[..., : 3 * UNITS]), gates[..., 3 * UNITS :]
        first, rest = wide[..., :UNITS], wide[..., UNITS:].reshape(*wide.shape[:-1], 2, UNITS)
        carry = jnp.tanh(first * keep + params["b"] * rest.sum(-2)) + 0.1 * params["w"].mean() * carry
        return carry, gates[..., ::2]


def check(name):
    cell = Own() if name == "Own" else getattr(cells, name)(UNITS)
    random = np.random.default_rng(0)
    draw = lambda leaf: normal(random, leaf.shape, jnp.float32, 0.3)  # noqa: E731
    xs = draw(np.zeros((STEPS, ROWS, UNITS)))
    params = jax.tree.map(lambda leaf: leaf + draw(leaf), cell.init(jax.random.key(0), UNITS))

    def run(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)

    def results(params, xs):
        loss = lambda params: sum(jnp.sum(jnp.sin(jnp.abs(leaf))) for leaf in jax.tree.leaves(run(params, xs)))  # noqa: E731
        tangents = jax.jvp(run, (params, xs), (params, xs))[1] if name in ("Own", "LSTM") else ()
        mapped = jax.vmap(run, (None, 2), 2)(params, jnp.stack([xs, -xs], 2)) if name in ("Own", "LSTM") else ()
        return jax.value_and_grad(loss)(params), tangents, jax.tree.map(jnp.abs, mapped)

    expected = jax.jit(results)(params, xs)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    specs = PartitionSpec() if name == "Own" else rs.sharding.rules(cell, mesh, input_size=UNITS)
    found = jax.jit(results)(rs.sharding.place(params, mesh, specs), rs.sharding.place_inputs(xs, mesh))
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)) / (1 + np.abs(np.asarray(a))))) for a, b in pairs)


if __name__ == "__main__":
    print(json.dumps({name: check(name) for name in json.loads(sys.argv[1])}))
