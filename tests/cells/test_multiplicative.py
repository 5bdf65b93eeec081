"""Multiplicative integration against Caffe2's form of it, one step after the other, and as the LSTM that it can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from tiers import variants
from zoo.case import Case, assert_trees_close


KEY = jax.random.key(0)

# So large that it matters whether it stands inside the root.
EPSILON = 0.05


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def caffe2(p, h, c, x, *, seen):
    """A step as Caffe2's graph has it, with the norm where there are parameters of one."""
    u = x @ p["kernel"] + p.get("input_bias", 0)
    previous = seen @ p["recurrent_kernel"] + p.get("recurrent_bias", 0)
    z = (p["alpha"] * u + p["beta_1"]) * previous + (p["beta_2"] * u + p.get("bias", 0))
    if "norm_scale" in p:
        mean = z.mean(-1, keepdims=True)
        variance = (z * z).mean(-1, keepdims=True) - mean**2
        z = p["norm_scale"] * (z - mean) / jnp.sqrt(variance + EPSILON) + p["norm_bias"]
    i, f, g, o = jnp.split(z, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(c), c


FORMS = {
    "plain": cells.MILSTM(4),
    "plain no bias": cells.MILSTM(4, use_bias=False),
    "layer norm": cells.LayerNormMILSTM(4, epsilon=EPSILON),
    "layer norm no bias": cells.LayerNormMILSTM(4, epsilon=EPSILON, use_bias=False),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cell", variants(FORMS, ["plain no bias", "layer norm"]))
def test_values_and_gradients_are_those_of_caffe2s_graph(cell):
    case = Case(cell)
    arguments = case.arguments(length=4)

    def expected(params, carry, xs):
        def step(carry, x):
            carry = caffe2(params, *carry, x, seen=carry[0])
            return carry, carry[0]

        return jax.lax.scan(step, carry, xs)

    assert_trees_close(
        jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments),
        jax.jit(lambda *a: case.gradients(expected, *a))(*arguments),
        tolerance=1e-9,
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["plain", "layer norm"])
def test_a_recurrent_mask_hides_the_state_from_the_product_alone(form):
    cell = FORMS[form]
    params, carry, xs = Case(cell).arguments(length=1)
    mask = jnp.array([[2.0, 0, 2, 0], [0, 2, 2, 0], [2, 2, 0, 0]])
    actual = jax.jit(lambda *a: cell(*a, recurrent_mask=mask))(params, carry, xs[0])
    expected = caffe2(params, *carry, xs[0], seen=mask * carry[0])
    assert_trees_close(actual, (expected, expected[0]), tolerance=1e-9)


@pytest.mark.usefixtures("x64")
def test_without_the_product_and_with_factors_of_one_it_is_an_lstm():
    case = Case(cells.MILSTM(4))
    params, carry, xs = case.arguments()
    params |= {"alpha": jnp.zeros(16), "beta_1": jnp.ones(16), "beta_2": jnp.ones(16)}
    biases = params["bias"] + params["input_bias"] + params["recurrent_bias"]
    lstm_params = {"kernel": params["kernel"], "recurrent_kernel": params["recurrent_kernel"], "bias": biases}
    expected = jax.jit(lambda *a: rs.scan(cells.LSTM(4), *a))(lstm_params, carry, xs)
    assert_trees_close(case.jitted(params, carry, xs), expected, tolerance=1e-9)


@pytest.mark.parametrize("cell_type", [cells.MILSTM, cells.LayerNormMILSTM])
@pytest.mark.parametrize("use_bias", [True, False])
def test_what_starts_as_what(cell_type, use_bias):
    params = cell_type(2, forget_bias=0.5, use_bias=use_bias).init(KEY, 3)
    ones, zeros = np.ones(8), np.zeros(8)
    forget = np.array([0, 0, 0.5, 0.5, 0, 0, 0, 0])
    has_norm = cell_type is cells.LayerNormMILSTM
    expected = {"alpha": ones, "beta_1": ones, "beta_2": ones}
    if use_bias:
        expected |= {"bias": zeros if has_norm else forget, "input_bias": zeros, "recurrent_bias": zeros}
    if has_norm:
        expected |= {"norm_scale": ones, "norm_bias": forget}
    assert params.keys() == expected.keys() | {"kernel", "recurrent_kernel"}
    for name, values in expected.items():
        np.testing.assert_array_equal(params[name], values, err_msg=name)


def test_each_bias_starts_by_itself():
    params = cells.MILSTM(4, bias_init=jax.nn.initializers.normal(), forget_bias=0.0).init(KEY, 3)
    biases = [params[name] for name in ("bias", "input_bias", "recurrent_bias")]
    assert len({tuple(map(float, bias)) for bias in biases}) == 3


def test_parameters_of_a_cell_without_the_norm():
    cell = cells.LayerNormMILSTM(4)
    x = jnp.ones((2, 3))
    with pytest.raises(ValueError, match=r"^LayerNormMILSTM: .* They belong to a cell of another kind or size\.$"):
        cell(cells.MILSTM(4).init(KEY, 3), cell.initial_carry(x), x)
