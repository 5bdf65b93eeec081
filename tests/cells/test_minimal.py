"""minGRU and minLSTM against the equations of their paper, and what is linear in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.cells.minimal import MinGRU, MinLSTM, positive
from tiers import variants
from zoo.case import Case, assert_trees_close


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def products(params, x, blocks, units=4):
    bias = params.get("bias", jnp.zeros(blocks * units))
    columns = [slice(start * units, (start + 1) * units) for start in range(blocks)]
    return [x @ params["kernel"][:, block] + bias[block] for block in columns]


def min_gru(params, carry, x, g):
    z, candidate = products(params, x, 2)
    z = sigmoid(z)
    return (1 - z) * carry[0] + z * g(candidate)


def min_lstm(params, carry, x, g):
    f, i, candidate = products(params, x, 3)
    f, i = sigmoid(f), sigmoid(i)
    return f / (f + i) * carry[0] + i / (f + i) * g(candidate)


def log_space_g(z):
    return jnp.where(z >= 0, z + 0.5, sigmoid(z))


FORMS = {
    "minGRU": (MinGRU(4), min_gru, lambda z: z),
    "minGRU without bias": (MinGRU(4, use_bias=False, activation="tanh"), min_gru, jnp.tanh),
    "minGRU in log-space": (MinGRU(4, activation=positive), min_gru, log_space_g),
    "minLSTM": (MinLSTM(4), min_lstm, lambda z: z),
    "minLSTM without bias": (MinLSTM(4, use_bias=False, activation="tanh"), min_lstm, jnp.tanh),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("cell", "step", "g"), variants(FORMS, ["minGRU in log-space", "minLSTM without bias"]))
def test_values_and_gradients_are_those_of_the_paper(cell, step, g):
    case = Case(cell)
    arguments = case.arguments(length=4, batch=2)

    def paper(params, carry, xs):
        def one(carry, x):
            h = step(params, carry, x, g)
            return (h,), h

        return jax.lax.scan(one, carry, xs)

    expected = jax.jit(lambda *a: case.gradients(paper, *a))(*arguments)
    actual = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    assert_trees_close(actual, expected, tolerance=1e-9)


@pytest.mark.parametrize("cell", [MinGRU(4), MinGRU(4, activation=positive), MinLSTM(4)], ids=repr)
def test_the_state_is_linear_and_nothing_is_recurrent(cell):
    params, carry, xs = Case(cell).arguments()
    explanation = rs.explain(cell, params, carry, xs)
    assert explanation.carry["[0]"].kind == "linear"
    assert explanation.kinds["recurrent"] == 0


def test_gates_that_are_closed_by_far_still_weigh_each_other():
    cell = MinLSTM(2, activation="tanh")
    # f is far above i in one unit, and below it in the other; both are 0 in float32.
    bias = jnp.array([-200.0, -300.0, -300.0, -200.0, 1.0, 1.0])
    params = {"kernel": jnp.zeros((3, 6)), "bias": bias}

    def run(params, carry):
        return cell(params, carry, jnp.ones((1, 3)))[1]

    hidden = jax.jit(run)(params, (jnp.full((1, 2), 5.0),))
    np.testing.assert_allclose(hidden, [[5.0, np.tanh(1.0)]], rtol=1e-6)
    gradients = jax.jit(jax.grad(lambda *a: run(*a).sum(), argnums=(0, 1)))(params, (jnp.full((1, 2), 5.0),))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"^MinGRU: `activation` must be a function or one of .*; got 'positive'\."):
        MinGRU(4, activation="positive")
    x = jnp.ones((2, 3))
    cell = MinLSTM(4)
    with pytest.raises(ValueError, match=r"MinLSTM: the parameters of 4 units must be 'kernel' \(D, 12\)"):
        cell(MinGRU(4).init(jax.random.key(0), 3), cell.initial_carry(x), x)
    with pytest.raises(ValueError, match="made with use_bias=False, and the cell has True"):
        cell(MinLSTM(4, use_bias=False).init(jax.random.key(0), 3), cell.initial_carry(x), x)
