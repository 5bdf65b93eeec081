"""Side effects of a cell whose units are sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs


T = 3
NUMBER = jax.ShapeDtypeStruct((), jnp.float32)
CALLBACKS = {
    "debug": lambda record, total: jax.debug.callback(record, total),
    "no result": lambda record, total: io_callback(record, None, total),
    "result that nothing reads": lambda record, total: io_callback(lambda x: record(x) or x, NUMBER, total),
}


@pytest.mark.parametrize("kind", CALLBACKS)
def test_callbacks_run_at_each_step(kind):
    cell, xs = rs.cells.LSTM(4), jnp.asarray(np.random.default_rng(0).normal(size=(T, 2, 3)), jnp.float32)
    params = cell.init(jax.random.key(0), input_size=3)
    seen = []

    def recording(params, carry, x):
        carry, y = cell(params, carry, x)
        CALLBACKS[kind](lambda total: seen.append(float(total)), y.sum())
        return carry, y

    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))
    shared = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    for parameters in (params, shared):
        jax.block_until_ready(rs.scan(recording, parameters, cell.initial_carry(xs[0]), xs))
        jax.effects_barrier()
    assert len(seen) == 2 * T
    np.testing.assert_allclose(sorted(seen[:T]), sorted(seen[T:]), rtol=1e-5)
