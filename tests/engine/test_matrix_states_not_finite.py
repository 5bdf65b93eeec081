"""An infinity in a matrix state reaches no earlier step, no other row and nothing after a reset, as in the loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells


CELLS = {
    "gla": cells.GLA(32, heads=2, key_size=16),
    "retnet": cells.RetNet(32, heads=2, key_size=16),
    "linear attention": cells.LinearAttention(32, heads=2, key_size=16),
    "mlstm": cells.MLSTM(32, heads=2),
}
PLANTED = {"inf": jnp.inf, "nan": jnp.nan, "overflow": 1e30}
STEPS, ROWS = 64, 2


def inputs(planted):
    xs = jax.random.normal(jax.random.key(1), (STEPS, ROWS, 16)).at[3, 0].set(planted)
    return xs, jnp.zeros((STEPS, ROWS), bool).at[5].set(True)


def results(cell, xs, reset, engine, *, weight_after):
    params = cell.init(jax.random.key(2), input_size=16)

    def run(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, reset=reset, engine=engine)

    def loss(params, xs):
        final, ys = run(params, xs)
        return (ys[weight_after:] ** 2).sum() + sum(leaf.sum() for leaf in jax.tree.leaves(final))

    return jax.jit(run)(params, xs), jax.jit(jax.grad(loss, (0, 1)))(params, xs)


def check(name, planted, platform):
    xs, reset = inputs(PLANTED[planted])
    with rs.tuned_for(platform):
        found, expected = (results(CELLS[name], xs, reset, engine, weight_after=8) for engine in ("auto", "lax"))
    ys = expected[0][1]
    assert not np.isfinite(ys[3, 0]).all()
    assert np.isfinite(ys[:3]).all()
    assert np.isfinite(ys[5:]).all()
    assert np.isfinite(ys[:, 1]).all()
    # The gradients by the inputs of the other row, and of later steps, are finite.
    assert np.isfinite(expected[1][1][:, 1]).all()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.core("values that are not finite")
@pytest.mark.parametrize("name", ["gla", "retnet"])
def test_an_infinity_stays_where_it_is(name):
    check(name, "inf", "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("name", CELLS)
def test_planted_values_of_every_kind(name, planted, platform):
    check(name, planted, platform)


def test_forward_mode_and_rows():
    cell, (xs, reset) = CELLS["retnet"], inputs(jnp.inf)
    params = cell.init(jax.random.key(2), input_size=16)

    def tangents(engine):
        def row(x, reset):
            run = lambda x: rs.scan(cell, params, cell.initial_carry(x[0]), x, reset=reset, engine=engine)[1]  # noqa: E731
            return jax.jvp(run, (x,), (jnp.ones_like(x),))[1]

        return jax.jit(jax.vmap(row, in_axes=1, out_axes=1))(xs[:, :, None], reset[..., None])

    found, expected = tangents("auto"), tangents("lax")
    assert np.isfinite(expected[5:]).all()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)
