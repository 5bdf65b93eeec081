"""Scans linear cells over steps on 4 simulated devices, and on one: `python over_time.py CASES`, with CASES as JSON.

It prints, as JSON, for each case the largest difference in results and gradients, and the collectives.
"""

import json
import os
import sys
from functools import partial

from xla_flags import flags


os.environ["XLA_FLAGS"] = flags(devices=8)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import rnnscan as rs
from drawn import normal
from on_devices import collectives
from rnnscan import cells


STEPS, ROWS, UNITS = 8, 4, 6
CASES = {name: getattr(cells, name) for name in ("MinGRU", "MinLSTM", "LRU", "RGLRU", "SRU", "S6", "GLA", "RetNet")}


def check(case):
    name, *options = case.split(", ")
    cell, reverse = CASES[name](UNITS), "reverse" in options
    random = np.random.default_rng(0)
    draw = lambda leaf: normal(random, leaf.shape, leaf.dtype, 0.5)  # noqa: E731
    xs = draw(np.zeros((STEPS, ROWS, UNITS), np.float32))
    params = jax.tree.map(lambda leaf: leaf + draw(leaf), cell.init(jax.random.key(0), UNITS))
    carry = jax.tree.map(draw, cell.initial_carry(xs[0]))
    more = {}
    if "rows" in options:
        more = {"mask": jnp.asarray(random.random((STEPS, ROWS)) > 0.3)}
        more["reset"] = jnp.asarray(random.random((STEPS, ROWS)) > 0.8)
    run = partial(rs.scan, cell, reverse=reverse)
    mesh = jax.make_mesh((2, 4), ("data", "time"), axis_types=(AxisType.Auto, AxisType.Auto))
    by_rows, cut = PartitionSpec("data"), PartitionSpec("time", "data")

    def on_devices(params, carry, xs, **more):
        over_time = lambda params, carry, xs, more: rs.sharding.scan_over_time(  # noqa: E731
            cell, params, carry, xs, reverse=reverse, **more
        )
        specs = {"in_specs": (PartitionSpec(), by_rows, cut, cut), "out_specs": (by_rows, cut)}
        return jax.shard_map(over_time, mesh=mesh, **specs)(params, carry, xs, more)

    def gradient(run):
        def loss(params, carry, xs):
            results = run(params, carry, xs, **more)
            return sum(jnp.sum(jnp.sin(jnp.abs(leaf) + 0.3)) for leaf in jax.tree.leaves(results)), results

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))

    expected = gradient(run)(params, carry, xs)
    compiled = gradient(on_devices).lower(params, carry, xs).compile()
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(compiled(params, carry, xs)), strict=True)
    return {
        "difference": max(float(np.max(np.abs(a - np.asarray(b)) / (1 + np.abs(a)))) for a, b in pairs),
        "collectives": collectives(compiled.as_text()),
    }


if __name__ == "__main__":
    print(json.dumps({case: check(case) for case in json.loads(sys.argv[1])}))
