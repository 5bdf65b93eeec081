"""The cells with layer normalization against their equations, one step after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan import cells
from rnnscan.cells.layer_norm import layer_norm
from tiers import variants
from zoo.case import Case, assert_trees_close


KEY = jax.random.key(0)

# So large that it matters whether it stands inside the root.
EPSILON = 0.05


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def norm(z):
    """As Caffe2 has it; in float64 its variance loses few digits."""
    mean = z.mean(-1, keepdims=True)
    return (z - mean) / jnp.sqrt((z * z).mean(-1, keepdims=True) - mean**2 + EPSILON)


def lstm_of_preactivation(p, h, c, x, *, seen):
    z = norm(x @ p["kernel"] + seen @ p["recurrent_kernel"] + p.get("bias", 0))
    i, f, g, o = jnp.split(p["norm_scale"] * z + p["norm_bias"], 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(c), c


def lstm_of_products(p, h, c, x, *, seen):
    """Equations 20 to 22 of Ba et al. 2016."""
    z = p["input_norm_scale"] * norm(x @ p["kernel"]) + p["recurrent_norm_scale"] * norm(seen @ p["recurrent_kernel"])
    i, f, g, o = jnp.split(z + p.get("bias", 0), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(p["cell_norm_scale"] * norm(c) + p["cell_norm_bias"]), c


def gru(p, h, x, *, seen):
    """Each gate by itself, but for the norm that r and z share."""
    bias, recurrent_bias = p.get("bias", jnp.zeros(12)), p.get("recurrent_bias", 0)
    from_input, from_hidden = x @ p["kernel"], seen @ p["recurrent_kernel"]
    input_scale, recurrent_scale = p["input_norm_scale"], p["recurrent_norm_scale"]
    gates = input_scale[:8] * norm(from_input[:, :8]) + recurrent_scale[:8] * norm(from_hidden[:, :8]) + bias[:8]
    r, z = sigmoid(gates[:, :4]), sigmoid(gates[:, 4:])
    candidate_input = input_scale[8:] * norm(from_input[:, 8:]) + bias[8:]
    n = jnp.tanh(candidate_input + r * (recurrent_scale[8:] * norm(from_hidden[:, 8:]) + recurrent_bias))
    return ((1 - z) * n + z * h,)


FORMS = {
    "lstm": (cells.LayerNormLSTM(4, epsilon=EPSILON), lstm_of_preactivation),
    "lstm no bias": (cells.LayerNormLSTM(4, epsilon=EPSILON, use_bias=False), lstm_of_preactivation),
    "lstm products": (cells.LayerNormLSTM(4, epsilon=EPSILON, normalize="products"), lstm_of_products),
    "lstm products no bias": (
        cells.LayerNormLSTM(4, epsilon=EPSILON, normalize="products", use_bias=False),
        lstm_of_products,
    ),
    "gru": (cells.LayerNormGRU(4, epsilon=EPSILON), gru),
    "gru no bias": (cells.LayerNormGRU(4, epsilon=EPSILON, use_bias=False), gru),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("cell", "step"), variants(FORMS, ["lstm products no bias", "gru"]))
def test_values_and_gradients_are_those_of_the_equations(cell, step):
    case = Case(cell)
    arguments = case.arguments(length=4)

    def expected(params, carry, xs):
        def one(carry, x):
            carry = step(params, *carry, x, seen=carry[0])
            return carry, carry[0]

        return jax.lax.scan(one, carry, xs)

    assert_trees_close(
        jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments),
        jax.jit(lambda *a: case.gradients(expected, *a))(*arguments),
        tolerance=1e-9,
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["lstm", "lstm products", "gru"])
def test_a_recurrent_mask_hides_the_state_from_the_product_alone(form):
    cell, step = FORMS[form]
    params, carry, xs = Case(cell).arguments(length=1)
    mask = jnp.array([[2.0, 0, 2, 0], [0, 2, 2, 0], [2, 2, 0, 0]])
    actual = jax.jit(lambda *a: cell(*a, recurrent_mask=mask))(params, carry, xs[0])
    expected = step(params, *carry, xs[0], seen=mask * carry[0])
    assert_trees_close(actual, (expected, expected[0]), tolerance=1e-9)


def test_the_variance_keeps_its_digits_where_the_mean_is_large():
    z = 4096 + jnp.arange(4.0)
    centered = np.arange(4.0) - 1.5
    expected = centered / np.sqrt(1.25 + 1e-5)
    np.testing.assert_allclose(layer_norm(z, jnp.ones(4), epsilon=1e-5), expected, rtol=1e-6)
    # The other way has an error of this size.
    assert abs((z * z).mean() - z.mean() ** 2 - 1.25) > 0.1


def test_statistics_are_taken_in_float32():
    z = jnp.asarray(np.random.default_rng(0).normal(size=64) + 100, jnp.bfloat16)
    exact = np.asarray(z, np.float64)
    normalized = layer_norm(z, jnp.ones(64, jnp.bfloat16), epsilon=1e-5)
    assert normalized.dtype == jnp.float32
    np.testing.assert_allclose(normalized, (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("use_bias", [True, False])
def test_what_starts_as_what(use_bias):
    ones, zeros = np.ones(8), np.zeros(8)
    forget = np.array([0, 0, 0.5, 0.5, 0, 0, 0, 0])
    params = cells.LayerNormLSTM(2, forget_bias=0.5, use_bias=use_bias).init(KEY, 3)
    expected = {"norm_scale": ones, "norm_bias": forget} | ({"bias": zeros} if use_bias else {})
    check_vectors(params, expected)

    params = cells.LayerNormLSTM(2, forget_bias=0.5, use_bias=use_bias, normalize="products").init(KEY, 3)
    expected = {"input_norm_scale": ones, "recurrent_norm_scale": ones} | ({"bias": forget} if use_bias else {})
    check_vectors(params, expected | {"cell_norm_scale": ones[:2], "cell_norm_bias": zeros[:2]})

    params = cells.LayerNormGRU(2, use_bias=use_bias).init(KEY, 3)
    expected = {"bias": zeros[:6], "recurrent_bias": zeros[:2]} if use_bias else {}
    check_vectors(params, expected | {"input_norm_scale": ones[:6], "recurrent_norm_scale": ones[:6]})


def check_vectors(params, expected):
    """All parameters but the kernels."""
    assert params.keys() == expected.keys() | {"kernel", "recurrent_kernel"}
    for name, values in expected.items():
        np.testing.assert_array_equal(params[name], values, err_msg=name)


@pytest.mark.parametrize("cell_type", [cells.LayerNormLSTM, cells.LayerNormGRU, cells.LayerNormMILSTM])
@pytest.mark.parametrize("epsilon", [0.0, -1e-5, float("nan")])
def test_an_epsilon_that_cannot_be(cell_type, epsilon):
    with pytest.raises(ValueError, match=rf"^{cell_type.__name__}: `epsilon` must be a number above 0; got {epsilon}"):
        cell_type(4, epsilon=epsilon)


@pytest.mark.bad_input
def test_an_unknown_form():
    message = r"^LayerNormLSTM: `normalize` must be one of 'preactivation', 'products'; got 'product'\."
    with pytest.raises(ValueError, match=message):
        cells.LayerNormLSTM(4, normalize="product")


@pytest.mark.parametrize(("mine", "other"), [("products", "preactivation"), ("preactivation", "products")])
def test_parameters_of_the_other_form(mine, other):
    cell = cells.LayerNormLSTM(4, normalize=mine)
    x = jnp.ones((2, 3))
    params = cells.LayerNormLSTM(4, normalize=other).init(KEY, 3)
    with pytest.raises(ValueError, match=rf"They were made with normalize='{other}', and the cell has '{mine}'\.$"):
        cell(params, cell.initial_carry(x), x)


def test_parameters_without_biases():
    cell = cells.LayerNormGRU(4)
    x = jnp.ones((2, 3))
    with pytest.raises(ValueError, match=r"They were made with use_bias=False, and the cell has True\.$"):
        cell(cells.LayerNormGRU(4, use_bias=False).init(KEY, 3), cell.initial_carry(x), x)
