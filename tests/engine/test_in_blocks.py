"""Recurrences in blocks, compared with a loop over the steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import rnnscan as rs
from rnnscan.engine.loops.in_blocks import apply_linear, compose_linear, run_in_blocks
from tiers import variants


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", variants([0, 1, 9, 16, 203, 512], [0, 1, 9, 203]))
def test_states_are_those_of_a_loop(length, reverse):
    random = np.random.default_rng(0)
    matrices, terms = random.normal(size=(length, 2, 2)) / 2, random.normal(size=(length, 2))
    start = random.normal(size=2)

    def compose(first, second):
        return second[0] @ first[0], (second[0] @ first[1][..., None])[..., 0] + second[1]

    def apply(step, state):
        return (step[0] @ state[..., None])[..., 0] + step[1]

    with jax.enable_x64(True):
        steps = jnp.asarray(matrices), jnp.asarray(terms)
        run = jax.jit(partial(run_in_blocks, compose, apply, reverse=reverse))
        after = run(steps, jnp.asarray(start))
    expected, state = np.zeros((length, 2)), start
    for step in range(length)[:: -1 if reverse else 1]:
        state = expected[step] = matrices[step] @ state + terms[step]
    np.testing.assert_allclose(after, expected, rtol=1e-12, atol=1e-12)


def test_infinity_reaches_no_step_before_it():
    factors, terms = jnp.full(64, 0.5).at[30].set(jnp.inf), jnp.ones(64)
    run = jax.jit(partial(run_in_blocks, compose_linear, apply_linear, reverse=False))
    after = run((factors, terms), jnp.float32(0))
    assert jnp.isfinite(after[:30]).all()
    assert not jnp.isfinite(after[30:]).any()


def test_rows_on_a_device_of_their_own():
    cell, xs = rs.cells.MinGRU(3), jnp.linspace(-1, 1, 40 * 2 * 2).reshape(40, 2, 2)
    params = cell.init(jax.random.key(0), 2)

    def loss(params, xs):
        return jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1] ** 2)

    rows = PartitionSpec(None, "data")
    own = lambda params, xs: jax.lax.psum(loss(params, xs), "data")  # noqa: E731
    with rs.tuned_for("gpu"):
        expected = jax.jit(jax.grad(loss))(params, xs)
        mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        mapped = jax.shard_map(own, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=PartitionSpec())
        actual = jax.jit(jax.grad(mapped))(params, xs)
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-6), actual, expected)
