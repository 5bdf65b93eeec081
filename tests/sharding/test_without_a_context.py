"""Explicit axes that the types of the arguments have, without `jax.set_mesh` around the call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
from rnnscan import cells


pytestmark = pytest.mark.core("devices")


@pytest.mark.parametrize("cell", [cells.LSTM(16), cells.SLSTM(16), cells.MinGRU(16), cells.LRU(16)])
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(segment=4)], ids=str)
def test_rows_on_an_explicit_axis(cell, memory):
    """With jax 0.12 the gradient of plain `lax.scan` raises for these cells."""
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(64, 4, 16)), jnp.float32)
    params = cell.init(jax.random.key(0), 16)

    def loss(params, xs):
        return jnp.mean(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)[1] ** 2)

    def forward(params, xs):
        return jax.jvp(lambda params: loss(params, xs), (params,), (params,))

    by_rows = jax.device_put(xs, NamedSharding(mesh, PartitionSpec(None, "rows")))
    replicated = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    for run in (jax.value_and_grad(loss), forward):
        got, expected = jax.jit(run)(replicated, by_rows), jax.jit(run)(params, xs)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), got, expected)
