"""ParaGRU and ParaLSTM against the equations of the paper, step by step and by Newton's method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from jaxprs import equations_of
from rnnscan import cells
from zoo.case import Case, assert_trees_close


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def gru_loop(params, carry, xs):
    (h,), ys = carry, []
    w, b = jnp.split(params["kernel"], 3, axis=1), jnp.split(params["bias"], 3)
    az, ar, an = jnp.split(params["recurrent_kernel"], 3)
    for x in xs:
        z = sigmoid(h @ jnp.diag(az) + x @ w[0] + b[0])
        r = sigmoid(h @ jnp.diag(ar) + x @ w[1] + b[1])
        new = jnp.tanh((h * r) @ jnp.diag(an) + x @ w[2] + b[2])
        h = (1 - z) * h + z * new
        ys.append(h)
    return (h,), jnp.stack(ys)


def lstm_loop(params, carry, xs):
    (h, c), ys = carry, []
    w, b = jnp.split(params["kernel"], 3, axis=1), jnp.split(params["bias"], 3)
    af, ao, ac = jnp.split(params["recurrent_kernel"], 3)
    cf, co = jnp.split(params["peephole_kernel"], 2)
    for x in xs:
        f = sigmoid(h @ jnp.diag(af) + x @ w[0] + c @ jnp.diag(cf) + b[0])
        new = jnp.tanh(h @ jnp.diag(ac) + x @ w[2] + b[2])
        c = f * c + (1 - f) * new
        o = sigmoid(h @ jnp.diag(ao) + x @ w[1] + c @ jnp.diag(co) + b[1])
        h = o * jnp.tanh(c)
        ys.append(h)
    return (h, c), jnp.stack(ys)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "parallel",
    [pytest.param(None, id="step by step", marks=pytest.mark.slow), pytest.param(rs.Newton(chunk=4), id="Newton")],
)
@pytest.mark.parametrize(("cell", "loop"), [(cells.ParaGRU(4), gru_loop), (cells.ParaLSTM(4), lstm_loop)])
def test_values_and_gradients_are_those_of_the_paper(cell, loop, parallel):
    case = Case(cell)
    arguments = case.arguments()
    found = jax.jit(lambda *a: case.gradients(lambda *b: case.scan(*b, parallel=parallel), *a))(*arguments)
    assert_trees_close(found, jax.jit(lambda *a: case.gradients(loop, *a))(*arguments), tolerance=1e-9)


def test_parameters_begin_as_in_the_paper():
    params = cells.ParaLSTM(1000).init(jax.random.key(0), input_size=8)
    np.testing.assert_allclose(params["bias"][:1000], -np.linspace(0, 1, 1000), atol=1e-6)
    assert not params["bias"][1000:].any()
    for label in ("recurrent_kernel", "peephole_kernel"):
        np.testing.assert_allclose(params[label].std(), 2 / np.sqrt(5 * 1000), rtol=0.1)
    assert np.abs(params["kernel"]).max() == pytest.approx(np.sqrt(6 / 1008), rel=0.01)


@pytest.mark.parametrize("cell", [cells.ParaGRU(8), cells.ParaLSTM(8)])
def test_gradients_of_vectors_are_joined_as_vectors(cell):
    """XLA does not fuse concatenations of `(1, units)` on a CPU, so that each step of a loop ran five more kernels."""
    params, x = cell.init(jax.random.key(0), input_size=4), jnp.ones((2, 4))

    def loss(params, carry):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(cell(params, carry, x)))

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, cell.initial_carry(x))
    pads = [each.outvars[0].aval for each in equations_of(jaxpr.jaxpr) if each.primitive.name in ("concatenate", "pad")]
    of_vectors = [aval.shape for aval in pads if aval.size == params["recurrent_kernel"].size]
    assert of_vectors
    assert {*map(len, of_vectors)} == {1}
