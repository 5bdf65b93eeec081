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


@pytest.mark.parametrize("first_step", ["normalized", "plain"])
def test_the_state_is_linear_and_nothing_is_recurrent(first_step):
    cell = RGLRU(4, heads=2, first_step=first_step)
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


def plain_and_normalized(zoned=lambda cell: cell):
    """A step of a cell with each kind of first step, from equal parameters and inputs."""
    plain, normalized = (RGLRU(4, heads=2, first_step=first_step) for first_step in ("plain", "normalized"))
    params, (hidden, _), xs = Case(plain, features=(4,)).arguments()
    return zoned(plain), zoned(normalized), params, hidden, xs


def test_the_carry_tells_where_a_sequence_begins():
    plain, normalized, params, hidden, xs = plain_and_normalized()
    started = jnp.array([True, False, True])
    (last, after), _ = plain(params, (hidden, started), xs[0])
    (expected,), _ = normalized(params, (hidden,), xs[0])
    equal = np.isclose(last, expected, atol=1e-6)
    assert equal[started].all()
    assert not equal[~started].any()
    assert after.dtype == bool
    assert after.all()
    assert not plain.initial_carry(xs[0])[1].any()


def test_a_carry_of_ones_own_says_whether_a_reset_begins_a_sequence():
    plain, normalized, params, hidden, xs = plain_and_normalized()
    reset = jnp.zeros(xs.shape[:2], bool).at[3, 1].set(True)
    options = {"reset": reset, "engine": "fission"}
    for started in (True, False):
        flags = jnp.full(3, started)
        (_, _), ys = rs.scan(plain, params, (hidden, jnp.ones(3, bool)), xs, reset_to=(hidden, flags), **options)
        _, expected = rs.scan(normalized, params, (hidden,), xs, reset_to=(hidden,), **options)
        np.testing.assert_allclose(ys[:3], expected[:3], atol=1e-6)
        np.testing.assert_allclose(ys[:, [0, 2]], expected[:, [0, 2]], atol=1e-6)
        assert np.allclose(ys[3, 1], expected[3, 1], atol=1e-6) == started


def test_zoneout_holds_units_and_no_flags():
    cell, _, params, hidden, xs = plain_and_normalized(lambda cell: rs.zoneout(cell, 0.7))
    started = jnp.zeros(3, bool)
    step = rs.with_key(cell, jax.random.key(1), params, xs[0])
    for (last, after), _ in (
        cell(params, (hidden, started), xs[0]),
        step(params, (hidden, started), (xs[0], jnp.asarray(0))),
    ):
        assert after.dtype == bool
        assert after.all()
        assert np.any(last != hidden)


def test_a_first_step_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"^RGLRU: `first_step` must be one of 'normalized', 'plain'; got 'none'\."):
        RGLRU(4, first_step="none")
    cell = RGLRU(4, first_step="plain")
    params, (hidden, _), xs = Case(cell, features=(4,)).arguments()
    with pytest.raises(TypeError, match=r"^RGLRU: the carry must be the tuple \(hidden, started\)"):
        cell(params, (hidden,), xs[0])
    with pytest.raises(TypeError, match=r"^RGLRU: started in the carry must be of a boolean dtype"):
        cell(params, (hidden, jnp.zeros(3)), xs[0])
