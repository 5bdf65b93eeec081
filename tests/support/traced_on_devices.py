"""Traces a stack with the batch on 4 simulated devices, and on one: `python traced_on_devices.py`.

It prints, as JSON, the largest difference between the two for each way to use the devices.
"""

import json
import os
from functools import partial

from xla_flags import flags


os.environ["XLA_FLAGS"] = flags(devices=4)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs


jax.config.update("jax_enable_x64", True)
CELL = rs.stack(rs.cells.LSTM(5), rs.cells.GRU(4))
KEYS = jax.random.split(jax.random.key(0), 3)
XS = jax.random.normal(KEYS[0], (6, 8, 3))
PARAMS = jax.tree.map(lambda leaf: leaf.astype(float), CELL.init(KEYS[1], 3))
LENGTHS = jnp.array([6, 5, 4, 3, 2, 1, 0, 6])


def loss(results):
    return (results[1] ** 2).sum() + sum((leaf**3).sum() for leaf in jax.tree.leaves(results[0]))


def trace(params, xs, lengths, steps=None, rows=None):
    carry = CELL.initial_carry(xs[0])
    return rs.trace(CELL, params, carry, xs, seq_lengths=lengths, loss=loss, steps=steps, rows=rows)


def difference(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(one) - np.asarray(other)).max()) for one, other in pairs)


def on_mesh(axis_type, steps, rows=None):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
    xs = jax.device_put(XS, NamedSharding(mesh, PartitionSpec(None, "data")))
    lengths = jax.device_put(LENGTHS, NamedSharding(mesh, PartitionSpec("data")))
    params = jax.device_put(PARAMS, NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh):
        return jax.jit(partial(trace, steps=steps, rows=rows))(params, xs, lengths)


def in_shard_map(steps):
    """Each device traces its rows: the losses of the rows add up."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec(None, "data")

    def of_rows(params, xs, lengths):
        traced = trace(params, xs, lengths, steps)
        return traced.arrays, traced.cotangent_arrays

    in_specs = (PartitionSpec(), rows, PartitionSpec("data"))
    return jax.jit(jax.shard_map(of_rows, mesh=mesh, in_specs=in_specs, out_specs=(rows, rows)))(PARAMS, XS, LENGTHS)


report = {}
for steps in (None, (1, 4)):
    alone = trace(PARAMS, XS, LENGTHS, steps)
    named = "chosen steps" if steps else "all steps"
    report[f"auto, {named}"] = difference(on_mesh(AxisType.Auto, steps), alone)
    report[f"explicit, {named}"] = difference(on_mesh(AxisType.Explicit, steps), alone)
    report[f"shard_map, {named}"] = difference(in_shard_map(steps), (alone.arrays, alone.cotangent_arrays))
alone = trace(PARAMS, XS, LENGTHS, rows=(1, 6))
for name, axis_type in (("auto", AxisType.Auto), ("explicit", AxisType.Explicit)):
    report[f"{name}, chosen rows"] = difference(on_mesh(axis_type, None, (1, 6)), alone)
print(json.dumps(report))
