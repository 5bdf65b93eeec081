"""Meshes that the types of the arguments, or a context, tell of, under other transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
from rnnscan import cells
from slow_reference import assert_close
from tiers import variants


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


@pytest.mark.parametrize("engine", ["auto", "lax"])
def test_units_are_shared_within_a_shard_map_over_rows(engine):
    """The axis of units is no axis of `jax.shard_map` then."""
    mesh = jax.make_mesh((1, 2), ("rows", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[:2])
    random = np.random.default_rng(0)
    kernel, carry, xs = (jnp.asarray(random.normal(size=size), jnp.float32) for size in ((8, 8), (4, 8), (5, 4, 8)))

    def cell(kernel, carry, x):
        carry = jnp.tanh(carry @ kernel + x)
        return carry, carry

    def by_devices(kernel):
        def run(kernel, carry, xs):
            return rs.scan(cell, kernel, carry, xs, engine=engine)[1]

        rows, stacks = PartitionSpec("rows"), PartitionSpec(None, "rows")
        specs = {"in_specs": (PartitionSpec(), rows, stacks), "out_specs": stacks, "axis_names": {"rows"}}
        return jnp.sum(jax.shard_map(run, mesh=mesh, **specs)(kernel, carry, xs) ** 2)

    def by_one(kernel):
        return jnp.sum(jax.lax.scan(lambda carry, x: cell(kernel, carry, x), carry, xs)[1] ** 2)

    # Not the gradient: XLA sums nothing sharded over a manual axis of one device. With two the gradients are equal.
    np.testing.assert_allclose(jax.jit(by_devices)(kernel), jax.jit(by_one)(kernel), rtol=1e-5)


def mapped_gradients(run, examples):
    """Gradients of parameters that `jax.vmap` maps: of examples, of results, and second ones."""
    random = np.random.default_rng(0)
    kernel = jnp.asarray(random.normal(size=(3, 3)) / 3)
    carry, xs, tangents = (
        jnp.asarray(random.normal(size=size)) for size in ((8, 3), (examples, 6, 8, 3), (examples, 3, 3))
    )

    def loss(kernel, xs):
        last, ys = run(kernel, carry, xs)
        return jnp.sum(jnp.sin(last)) + jnp.sum(ys**2)

    def second(tangent):
        return jax.grad(lambda kernel: jnp.sum(jax.grad(loss)(kernel, xs[0]) * tangent))(kernel)

    return {
        "examples": lambda: jax.vmap(jax.grad(loss), (None, 0))(kernel, xs),
        "both": lambda: jax.vmap(jax.grad(loss, (0, 1)))(kernel + tangents / 9, xs),
        "twice": lambda: jax.vmap(jax.vmap(jax.grad(loss), (None, 0)), (0, None))(kernel + tangents / 9, xs),
        "results": lambda: jax.jacrev(lambda kernel: run(kernel, carry, xs[0])[0].sum(1))(kernel),
        "tangents": lambda: jax.jacfwd(lambda kernel: run(kernel, carry, xs[0])[0].sum(1))(kernel),
        "second": lambda: jax.hessian(loss)(kernel, xs[0]),
        "in reverse twice": lambda: jax.vmap(second)(tangents),
    }


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("examples", [2, 3])
@pytest.mark.parametrize("segment", variants([2, 4, (4, 2)], [2]))
def test_mapped_gradients_in_segments_in_sight_of_a_mesh(examples, segment):
    """Of as many examples as devices each got the mean of all."""

    def cell(kernel, carry, x):
        return jnp.tanh(carry @ kernel + x), carry**2

    def plain(kernel, carry, xs):
        return jax.lax.scan(lambda carry, x: cell(kernel, carry, x), carry, xs)

    expected = {name: run() for name, run in mapped_gradients(plain, examples).items()}
    scan = lambda *arguments: rs.scan(cell, *arguments, memory=rs.Memory(segment=segment))  # noqa: E731
    mesh = jax.make_mesh((2,), ("rows",), (AxisType.Auto,), devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        found = {name: jax.jit(run)() for name, run in mapped_gradients(scan, examples).items()}
    assert_close(jax.device_get(found), jax.device_get(expected))
