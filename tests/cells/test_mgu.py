"""MGU beside flax.linen.MGUCell, and against its equations where Flax has no such form."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from zoo.case import Case, assert_trees_close


KEY = jax.random.key(0)
TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 3, 3, 4


def from_flax(params):
    """Flax has one dense layer a gate, with biases on those of the input, and on hn where there is a reset."""
    mapped = {
        "kernel": jnp.concatenate([params["if"]["kernel"], params["in"]["kernel"]], axis=-1),
        "recurrent_kernel": jnp.concatenate([params["hf"]["kernel"], params["hn"]["kernel"]], axis=-1),
        "bias": jnp.concatenate([params["if"]["bias"], params["in"]["bias"]]),
    }
    return mapped | ({"recurrent_bias": params["hn"]["bias"]} if "bias" in params["hn"] else {})


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("reset_gate", [True, False])
def test_values_and_gradients_are_those_of_flax(reset_gate):
    case = Case(cells.MGU(HIDDEN_SIZE, reset_gate=reset_gate))
    flax_cell = nn.MGUCell(HIDDEN_SIZE, reset_gate=reset_gate, param_dtype=jnp.float64)
    _, carry, xs = case.arguments(length=TIME)
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: flax_cell.init(KEY, carry[0], xs[0])["params"])
    weights = jax.tree.map(lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape)), shapes)

    def run_flax(weights, carry, xs):
        final, ys = jax.lax.scan(lambda h, x: flax_cell.apply({"params": weights}, h, x), carry[0], xs)
        return (final,), ys

    def run_rnnscan(weights, carry, xs):
        return rs.scan(case.cell, from_flax(weights), carry, xs)

    expected = jax.jit(lambda *a: case.gradients(run_flax, *a))(weights, carry, xs)
    actual = jax.jit(lambda *a: case.gradients(run_rnnscan, *a))(weights, carry, xs)
    assert_trees_close(actual, expected, tolerance=1e-9)


@pytest.mark.parametrize("reset_gate", [True, False])
def test_parameters_start_in_the_shapes_and_with_the_biases_of_flax(reset_gate):
    x, hidden = jnp.ones((BATCH, INPUT_SIZE)), jnp.ones((BATCH, HIDDEN_SIZE))
    of_flax = from_flax(nn.MGUCell(HIDDEN_SIZE, reset_gate=reset_gate).init(KEY, hidden, x)["params"])
    params = cells.MGU(HIDDEN_SIZE, reset_gate=reset_gate).init(KEY, INPUT_SIZE)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, of_flax)
    for bias in params.keys() - {"kernel", "recurrent_kernel"}:
        np.testing.assert_array_equal(params[bias], of_flax[bias])


def test_the_forget_bias_is_in_the_forget_gates_block():
    params = cells.MGU(2, forget_bias=0.5, bias_init=jax.nn.initializers.ones).init(KEY, INPUT_SIZE)
    np.testing.assert_array_equal(params["bias"], [1.5, 1.5, 1, 1])
    np.testing.assert_array_equal(params["recurrent_bias"], [1, 1])


def equations(p, h, x, *, reset_gate, mask=1.0):
    """A step with softsign for tanh and `jax.nn.hard_sigmoid` for sigmoid, without biases."""
    kernel_f, kernel_n = jnp.split(p["kernel"], 2, axis=1)
    recurrent_f, recurrent_n = jnp.split(p["recurrent_kernel"], 2, axis=1)
    f = jnp.clip((x @ kernel_f + (mask * h) @ recurrent_f) / 6 + 0.5, 0, 1)
    z = x @ kernel_n + (f if reset_gate else 1) * ((mask * h) @ recurrent_n)
    return (1 - f) * z / (1 + abs(z)) + f * h


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("reset_gate", [True, False])
def test_other_activations_no_biases_and_a_recurrent_mask(reset_gate):
    case = Case(
        cells.MGU(4, reset_gate=reset_gate, use_bias=False, activation="softsign", gate_activation=jax.nn.hard_sigmoid)
    )
    params, carry, xs = case.arguments(length=TIME)
    mask = jnp.array([[2.0, 0, 2, 0], [0, 2, 2, 0], [2, 2, 0, 0]])

    def masked(params, carry, x, mask):
        return case.cell(params, carry, x, recurrent_mask=mask)

    def expected(params, carry, xs):
        def step(carry, x):
            h = equations(params, *carry, x, reset_gate=reset_gate)
            return (h,), h

        return jax.lax.scan(step, carry, xs)

    assert_trees_close(
        jax.jit(lambda *a: case.gradients(case.scan, *a))(params, carry, xs),
        jax.jit(lambda *a: case.gradients(expected, *a))(params, carry, xs),
        tolerance=1e-9,
    )
    h = equations(params, carry[0], xs[0], reset_gate=reset_gate, mask=mask)
    assert_trees_close(jax.jit(masked)(params, carry, xs[0], mask), ((h,), h), tolerance=1e-9)


@pytest.mark.parametrize("reset_gate", [True, False])
def test_parameters_of_the_other_reset(reset_gate):
    cell, other = cells.MGU(4, reset_gate=reset_gate), cells.MGU(4, reset_gate=not reset_gate)
    x = jnp.ones((2, 3))
    message = rf"^MGU: .* They were made with reset_gate={not reset_gate}, and the cell has {reset_gate}\."
    with pytest.raises(ValueError, match=message):
        cell(other.init(KEY, 3), cell.initial_carry(x), x)


@pytest.mark.bad_input
def test_an_unknown_activation():
    with pytest.raises(ValueError, match=r"^MGU: `gate_activation` must be a function or one of .*; got 'sigm'\."):
        cells.MGU(4, gate_activation="sigm")
