"""RGLRU against the equations of the Griffin paper, and what is linear in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import block_diag

import rnnscan as rs
from rnnscan.cells.rglru import RGLRU
from tiers import variants
from zoo.case import Case, assert_trees_close


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def paper(params, carry, xs, *, c=8.0):
    """Equations 1 to 4, with the power and the square root as they stand, and dense gate kernels of mostly zeros."""
    head = params["kernel"].shape[1]
    kernel_r = block_diag(*params["kernel"][:, :, :head])
    kernel_i = block_diag(*params["kernel"][:, :, head:])
    bias_r, bias_i = jnp.split(params.get("bias", jnp.zeros(2 * carry[0].shape[-1])), 2)

    def step(carry, x):
        r = sigmoid(x @ kernel_r + bias_r)
        i = sigmoid(x @ kernel_i + bias_i)
        a = sigmoid(params["decay"]) ** (c * r)
        h = a * carry[0] + jnp.sqrt(1 - a**2) * (i * x)
        return (h,), h

    return jax.lax.scan(step, carry, xs)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "cell",
    variants(
        [RGLRU(6), RGLRU(6, heads=2, exponent=2.5), RGLRU(6, heads=6, use_bias=False)],
        [RGLRU(6, heads=2, exponent=2.5)],
    ),
    ids=repr,
)
def test_values_and_gradients_are_those_of_the_paper(cell):
    case = Case(cell, features=(6,))
    arguments = case.arguments(length=5)
    expected = jax.jit(lambda *a: case.gradients(lambda *a: paper(*a, c=cell.exponent), *a))(*arguments)
    actual = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    assert_trees_close(actual, expected, tolerance=1e-9)


def test_the_state_is_linear_and_nothing_is_recurrent():
    cell = RGLRU(4, heads=2)
    params, carry, xs = Case(cell, features=(4,)).arguments()
    explanation = rs.explain(cell, params, carry, xs)
    assert explanation.carry["[0]"].kind == "linear"
    assert explanation.kinds["recurrent"] == 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_closed_gate_holds_the_state_and_gradients_stay_finite(dtype):
    cell = RGLRU(3, dtype=dtype)
    # Recurrence gates of exactly 0, of 1e-35, and of 1 with a decay of 1.
    params = {"kernel": jnp.zeros((1, 3, 6)), "decay": jnp.array([2.0, 2.0, 200.0])}
    params["bias"] = jnp.array([-200.0, -80.0, 100.0, 0.0, 0.0, 0.0])
    x, carry = jnp.ones((1, 3)), (jnp.full((1, 3), 0.5),)

    def run(params, carry, x):
        return cell(params, carry, x)[0][0]

    np.testing.assert_allclose(jax.jit(run)(params, carry, x), np.full((1, 3), 0.5), atol=1e-6)
    gradients = jax.jit(jax.grad(lambda *a: run(*a).sum(), argnums=(0, 1, 2)))(params, carry, x)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_a_decay_near_one_keeps_its_digits_in_bfloat16():
    cell = RGLRU(1, dtype=jnp.bfloat16)
    params = {"kernel": jnp.zeros((1, 1, 2)), "decay": jnp.array([7.0]), "bias": jnp.array([0.0, 100.0])}
    (hidden,), _ = cell(params, (jnp.zeros((1, 1)),), jnp.ones((1, 1)))
    a = (1 / (1 + np.exp(-7.0))) ** 4
    np.testing.assert_allclose(hidden, [[np.sqrt(1 - a**2)]], rtol=1e-5)


def test_new_decays_are_spread_over_their_range():
    cell = RGLRU(4096, heads=64, decay_range=(0.2, 0.6))
    params = cell.init(jax.random.key(0), 4096)
    assert {name: leaf.shape for name, leaf in params.items()} == {
        "kernel": (64, 64, 128),
        "decay": (4096,),
        "bias": (8192,),
    }
    decay = np.asarray(jax.nn.sigmoid(params["decay"])) ** 8
    assert decay.min() >= 0.2 - 1e-4
    assert decay.max() <= 0.6 + 1e-4
    assert abs(decay.mean() - 0.4) < 0.01
    assert 0.9 < float(params["kernel"].std()) * 8 < 1.1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"^RGLRU: `heads` must divide `hidden_size`, 4; got 3\."):
        RGLRU(4, heads=3)
    with pytest.raises(ValueError, match=r"^RGLRU: `exponent` must be a number above 0; got -1\.0\."):
        RGLRU(4, exponent=-1.0)
    for decay_range in ((0.9, 0.1), (0.5, 1.0), (0.0, 0.5)):
        with pytest.raises(ValueError, match=r"^RGLRU: `decay_range` must be a tuple of two ascending numbers"):
            RGLRU(4, decay_range=decay_range)
    with pytest.raises(ValueError, match=r"^RGLRU: the input must have as many features as `hidden_size`, 4; got 3"):
        RGLRU(4).init(jax.random.key(0), 3)
    cell = RGLRU(4)
    params = cell.init(jax.random.key(0), 4)
    with pytest.raises(ValueError, match=r"^RGLRU: the input must have as many features as `hidden_size`, 4; got 3"):
        cell({**params, "decay": jnp.ones(3)}, (jnp.ones((2, 4)),), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"^RGLRU: one step's input must be \(N, 4\)"):
        cell(params, (jnp.ones((2, 4)),), jnp.ones((2, 3)))
