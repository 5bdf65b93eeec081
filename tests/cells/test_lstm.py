"""The forms of the LSTM against its equations, gate by gate: peepholes, projection, coupled gates, clipped state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan.cells import GRU, LSTM
from tiers import variants
from zoo.case import Case, assert_trees_close


UNITS = 4

FORMS = {
    "peepholes": LSTM(UNITS, peepholes=True),
    "projected": LSTM(UNITS, proj_size=2),
    "coupled": LSTM(UNITS, coupled_gates=True),
    "coupled, peepholes, projected": LSTM(UNITS, coupled_gates=True, peepholes=True, proj_size=3),
    "clipped": LSTM(UNITS, cell_clip=0.3),
    "hard sigmoid, no bias": LSTM(UNITS, gate_activation="hard_sigmoid", activation="softsign", use_bias=False),
}
FUNCTIONS = {
    "tanh": jnp.tanh,
    "sigmoid": lambda z: 1 / (1 + jnp.exp(-z)),
    "softsign": lambda z: z / (1 + jnp.abs(z)),
    "hard_sigmoid": lambda z: jnp.minimum(jnp.maximum(0.2 * z + 0.5, 0), 1),
}


def slow_step(cell, params, hidden, state, x):
    """One step from the equations: each gate with a kernel, a recurrent kernel, a bias and a peephole of its own."""
    gates = ["f", "g", "o"] if cell.coupled_gates else ["i", "f", "g", "o"]
    seeing = [gate for gate in gates if gate != "g"]

    def block(array, names, gate):
        first = names.index(gate) * UNITS
        return array[..., first : first + UNITS]

    def preactivation(gate, seen):
        z = x @ block(params["kernel"], gates, gate) + hidden @ block(params["recurrent_kernel"], gates, gate)
        if cell.use_bias:
            z = z + block(params["bias"], gates, gate)
        return z + block(params["peepholes"], seeing, gate) * seen if cell.peepholes and gate in seeing else z

    sigma, squash = FUNCTIONS[cell.gate_activation], FUNCTIONS[cell.activation]
    forget = sigma(preactivation("f", state))
    write = 1 - forget if cell.coupled_gates else sigma(preactivation("i", state))
    new_state = forget * state + write * squash(preactivation("g", state))
    if cell.cell_clip is not None:
        new_state = jnp.minimum(jnp.maximum(new_state, -cell.cell_clip), cell.cell_clip)
    new_hidden = sigma(preactivation("o", new_state)) * squash(new_state)
    if cell.proj_size is not None:
        new_hidden = new_hidden @ params["projection_kernel"]
    return new_hidden, new_state


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cell", variants(FORMS, ["coupled, peepholes, projected", "clipped"]))
def test_values_and_gradients_are_those_of_the_equations(cell):
    case = Case(cell)
    arguments = case.arguments(length=5)

    def loop(params, carry, xs):
        def step(carry, x):
            carry = slow_step(cell, params, *carry, x)
            return carry, carry[0]

        return jax.lax.scan(step, carry, xs)

    fast, slow = (jax.jit(lambda *a, run=run: case.gradients(run, *a))(*arguments) for run in (case.scan, loop))
    assert_trees_close(fast, slow, tolerance=1e-9)


def test_a_clip_is_reached_in_the_test_above():
    (_, state), _ = Case(FORMS["clipped"]).scan(*Case(FORMS["clipped"]).arguments(length=5))
    assert np.any(np.abs(state) == np.float32(0.3))


def test_the_parameters_of_each_form():
    shapes = lambda cell: jax.tree.map(jnp.shape, cell.init(jax.random.key(0), 3))  # noqa: E731
    assert shapes(FORMS["coupled, peepholes, projected"]) == {
        "kernel": (3, 12),
        "recurrent_kernel": (3, 12),
        "bias": (12,),
        "peepholes": (8,),
        "projection_kernel": (4, 3),
    }
    assert shapes(FORMS["hard sigmoid, no bias"]) == {"kernel": (3, 16), "recurrent_kernel": (4, 16)}
    bias = LSTM(UNITS, coupled_gates=True, forget_bias=2.0).init(jax.random.key(0), 3)["bias"]
    np.testing.assert_array_equal(bias, [2.0] * 4 + [0.0] * 8)


@pytest.mark.parametrize("option", ["peepholes", "coupled_gates", "use_bias"])
def test_parameters_made_with_another_option_say_so(option):
    cell, other = LSTM(4), LSTM(4, **{option: not getattr(LSTM(4), option)})
    params, (carry, x) = other.init(jax.random.key(0), 3), (cell.initial_carry(jnp.ones((2, 3))), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=rf"^LSTM: .* They were made with {option}={getattr(other, option)}, and the"):
        cell(params, carry, x)


@pytest.mark.parametrize(
    ("options", "message"), [({"proj_size": 0}, "`proj_size`"), ({"cell_clip": -1.0}, "`cell_clip`")]
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=f"^LSTM: {message} must be "):
        LSTM(4, **options)


def test_a_gru_without_biases_is_one_with_zeros():
    cell, with_bias = GRU(4, use_bias=False), GRU(4)
    params, carry, xs = Case(cell).arguments()
    zeros = params | {"bias": jnp.zeros(12), "recurrent_bias": jnp.zeros(4)}
    assert_trees_close(Case(cell).scan(params, carry, xs), Case(with_bias).scan(zeros, carry, xs), tolerance=1e-6)
