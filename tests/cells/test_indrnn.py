"""IndRNN against its equation, and as the simple recurrent cell with a diagonal matrix that it is."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from zoo.case import Case, assert_trees_close


KEY = jax.random.key(0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("activation", "function", "use_bias"),
    [
        ("relu", lambda z: jnp.where(z > 0, z, 0), True),
        ("tanh", lambda z: 2 / (1 + jnp.exp(-2 * z)) - 1, False),
        ("identity", lambda z: z, True),
    ],
    ids=["relu", "tanh without bias", "identity"],
)
def test_values_and_gradients_are_those_of_the_equation(activation, function, use_bias):
    case = Case(cells.IndRNN(4, activation=activation, use_bias=use_bias))
    arguments = case.arguments()

    def expected(params, carry, xs):
        def step(carry, x):
            h = function(x @ params["kernel"] + params["recurrent_kernel"] * carry[0] + params.get("bias", 0))
            return (h,), h

        return jax.lax.scan(step, carry, xs)

    assert_trees_close(
        jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments),
        jax.jit(lambda *a: case.gradients(expected, *a))(*arguments),
        tolerance=1e-9,
    )


@pytest.mark.usefixtures("x64")
def test_it_is_a_simple_cell_with_a_diagonal_recurrent_kernel():
    case = Case(cells.IndRNN(4))
    params, carry, xs = case.arguments()
    dense = params | {"recurrent_kernel": jnp.diag(params["recurrent_kernel"])}
    expected = jax.jit(lambda *a: rs.scan(cells.RNN(4, activation="relu"), *a))(dense, carry, xs)
    assert_trees_close(case.jitted(params, carry, xs), expected, tolerance=1e-9)


@pytest.mark.parametrize(("activation", "kind"), [("identity", "linear"), ("relu", "elementwise")])
def test_without_an_activation_the_state_is_linear(activation, kind):
    cell = cells.IndRNN(4, activation=activation)
    params, carry, xs = Case(cell).arguments()
    assert rs.explain(cell, params, carry, xs).carry["[0]"].kind == kind


def test_a_float32_carry_counts_further_than_bfloat16_can():
    cell = cells.IndRNN(1, use_bias=False, dtype=jnp.bfloat16, carry_dtype=jnp.float32)
    params = {"kernel": jnp.ones((1, 1)), "recurrent_kernel": jnp.ones(1)}
    xs = jnp.ones((300, 1, 1), jnp.bfloat16)
    (hidden,), ys = jax.jit(lambda: rs.scan(cell, params, cell.initial_carry(xs[0]), xs))()
    # bfloat16 has 8 bits: 256 + 1 is 256 there.
    assert hidden[0, 0] == 300
    assert ys.dtype == jnp.bfloat16


@pytest.mark.parametrize("recurrent_max", [1.0, 2 ** (1 / 10)])
def test_recurrent_weights_start_uniform_up_to_the_largest(recurrent_max):
    params = cells.IndRNN(1000, recurrent_max=recurrent_max).init(KEY, 3)
    assert jax.tree.map(jnp.shape, params) == {"kernel": (3, 1000), "recurrent_kernel": (1000,), "bias": (1000,)}
    weights = params["recurrent_kernel"]
    assert 0 <= weights.min() < 0.01 * recurrent_max
    assert 0.99 * recurrent_max < weights.max() <= recurrent_max
    # The mean of 1000 has a standard deviation of 0.3 / sqrt(1000) = 0.01.
    assert abs(weights.mean() / recurrent_max - 0.5) < 0.04


@pytest.mark.parametrize("recurrent_max", [0.0, -1.0, float("nan")])
def test_a_largest_recurrent_weight_that_cannot_be(recurrent_max):
    with pytest.raises(ValueError, match=rf"^IndRNN: `recurrent_max` must be a number above 0; got {recurrent_max}\."):
        cells.IndRNN(4, recurrent_max=recurrent_max)


def test_parameters_of_a_simple_cell():
    cell = cells.IndRNN(4)
    x = jnp.ones((2, 3))
    with pytest.raises(
        ValueError, match=r"^IndRNN: .* 'recurrent_kernel' \(4,\), .* a cell of another kind or size\.$"
    ):
        cell(cells.RNN(4).init(KEY, 3), cell.initial_carry(x), x)
