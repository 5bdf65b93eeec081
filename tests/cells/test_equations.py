"""Cells against their equations, written in numpy, and their gradients against finite differences."""

import jax
import numpy as np
import pytest
from jax.test_util import check_jvp, check_vjp

import rnnscan as rs


pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.typed]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def block(array, number, size=4):
    """The block of one gate in a fused kernel or bias."""
    return array[..., number * size : (number + 1) * size]


def lstm_step(p, h, c, x):
    z_i, z_f, z_g, z_o = (
        x @ block(p["kernel"], k) + h @ block(p["recurrent_kernel"], k) + block(p["bias"], k) for k in range(4)
    )
    c = sigmoid(z_f) * c + sigmoid(z_i) * np.tanh(z_g)
    return sigmoid(z_o) * np.tanh(c), c


def gru_step(p, h, x):
    r, z = (
        sigmoid(x @ block(p["kernel"], k) + h @ block(p["recurrent_kernel"], k) + block(p["bias"], k)) for k in range(2)
    )
    from_input = x @ block(p["kernel"], 2) + block(p["bias"], 2)
    if "recurrent_bias" in p:
        n = np.tanh(from_input + r * (h @ block(p["recurrent_kernel"], 2) + p["recurrent_bias"]))
    else:
        n = np.tanh(from_input + (r * h) @ block(p["recurrent_kernel"], 2))
    return ((1 - z) * n + z * h,)


def rnn_tanh_step(p, h, x):
    return (np.tanh(x @ p["kernel"] + h @ p["recurrent_kernel"] + p["bias"]),)


def rnn_relu_step(p, h, x):
    return (np.maximum(x @ p["kernel"] + h @ p["recurrent_kernel"] + p["bias"], 0),)


EQUATIONS = {
    "lstm": (rs.cells.LSTM(4), lstm_step),
    "gru": (rs.cells.GRU(4), gru_step),
    "gru_reset_before": (rs.cells.GRU(4, reset_after=False), gru_step),
    "rnn_tanh": (rs.cells.RNN(4), rnn_tanh_step),
    "rnn_relu": (rs.cells.RNN(4, activation="relu"), rnn_relu_step),
}


@pytest.mark.parametrize(("cell", "step"), EQUATIONS.values(), ids=EQUATIONS)
def test_cell_computes_its_equations(cell, step, case_of, assert_trees_close):
    case = case_of(cell)
    params, carry, xs = case.arguments()
    p, states = jax.tree.map(np.asarray, (params, carry))
    ys = []
    for x in np.asarray(xs):
        states = step(p, *states, x)
        ys.append(states[0])
    assert_trees_close(case.jitted(params, carry, xs), (states, np.stack(ys)))


def test_stack_feeds_each_output_to_the_next_layer(case_of, assert_trees_close):
    lower, upper = rs.cells.LSTM(4), rs.cells.GRU(5)
    case = case_of(rs.stack(lower, upper))
    params, carry, xs = case.arguments()
    lower_last, hidden = jax.jit(lambda *a: rs.scan(lower, *a))(params["layer_0"], carry[0], xs)
    upper_last, ys = jax.jit(lambda *a: rs.scan(upper, *a))(params["layer_1"], carry[1], hidden)
    assert_trees_close(case.jitted(params, carry, xs), ((lower_last, upper_last), ys))


CHOICES = {
    "plain": {"memory": None},
    "lax keep": {"memory": rs.Memory(), "engine": "lax"},
    "lax recompute": {"memory": rs.Memory(recompute="all"), "engine": "lax"},
    "keep": {"memory": rs.Memory()},
    "recompute": {"memory": rs.Memory(recompute="all")},
    "segment": {"memory": rs.Memory(segment=2)},
}


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_gradients_of_both_orders_are_finite_differences(case, choice):
    # Two whole segments: a remainder would double what is compiled, and has its test in test_properties.py.
    arguments = case.arguments(length=4, batch=2)

    def run(*arguments):
        return case.scan(*arguments, **CHOICES[choice])

    def gradients(*arguments):
        return case.gradients(run, *arguments)[1]

    # What forward mode runs does not depend on what is recomputed; tests/test_forward_mode.py has each memory choice.
    check_modes(run, arguments, forward=choice != "recompute")
    check_modes(gradients, arguments, forward=True)


def check_modes(function, arguments, *, forward):
    """What `check_grads` does, with each derivative under one jit."""
    value = jax.jit(function)
    push = jax.jit(lambda primals, tangents: jax.jvp(function, primals, tangents))
    pull = jax.jit(lambda primals, cotangents: jax.vjp(function, *primals)[1](cotangents))

    def value_and_pull(*primals):
        return value(*primals), lambda cotangents: pull(primals, cotangents)

    # Central differences with JAX's step for float64 are good to 1e-6; the rest is room for sums over many elements.
    tolerance = {"atol": 1e-5, "rtol": 1e-5}
    if forward:
        check_jvp(value, push, arguments, **tolerance)
    check_vjp(value, value_and_pull, arguments, **tolerance)
