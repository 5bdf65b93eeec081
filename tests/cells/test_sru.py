"""SRU against the equations of its paper, and what is linear in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.cells.sru import SRU
from tiers import variants
from zoo.case import Case, assert_trees_close


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def paper(params, carry, xs, *, units=4, g=lambda c: c, alpha=1.0):
    """Equations 1 to 4, one after the other; for an x of another size than c, the highway's x is projected."""
    blocks = [params["kernel"][:, start : start + units] for start in range(0, params["kernel"].shape[1], units)]
    b_f, b_r = jnp.split(params.get("bias", jnp.zeros(2 * units)), 2)
    v_f, v_r = jnp.split(params.get("recurrent_vectors", jnp.zeros(2 * units)), 2)

    def step(carry, x):
        (c,) = carry
        f = sigmoid(x @ blocks[1] + v_f * c + b_f)
        r = sigmoid(x @ blocks[2] + v_r * c + b_r)
        c = f * c + (1 - f) * (x @ blocks[0])
        highway = x @ blocks[3] if len(blocks) == 4 else x
        return (c,), r * g(c) + (1 - r) * alpha * highway

    return jax.lax.scan(step, carry, xs)


FORMS = {
    "first version": (SRU(4), 3, {}),
    "with vectors": (SRU(4, recurrent_vectors=True), 3, {}),
    "as wide as x": (SRU(4), 4, {}),
    "scaled": (SRU(4, activation="tanh", highway_scale=1.7), 4, {"g": jnp.tanh, "alpha": 1.7}),
    "scaled and projected": (SRU(4, recurrent_vectors=True, highway_scale=0.6), 3, {"alpha": 0.6}),
    "without biases": (SRU(4, use_bias=False), 3, {}),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("cell", "input_size", "options"), variants(FORMS, ["as wide as x", "scaled and projected"]))
def test_values_and_gradients_are_those_of_the_paper(cell, input_size, options):
    case = Case(cell, features=(input_size,))
    arguments = case.arguments(length=5)
    expected = jax.jit(lambda *a: case.gradients(lambda *a: paper(*a, **options), *a))(*arguments)
    actual = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    assert_trees_close(actual, expected, tolerance=1e-9)


def test_the_state_is_linear_unless_the_gates_see_it():
    def kind(cell):
        params, carry, xs = Case(cell).arguments()
        return rs.explain(cell, params, carry, xs).carry["[0]"].kind

    assert kind(SRU(4)) == kind(SRU(3, activation="tanh")) == "linear"
    assert kind(SRU(4, recurrent_vectors=True)) == "elementwise"


def test_parameters_depend_on_the_width_of_the_input():
    cell = SRU(4, recurrent_vectors=True, highway_bias=-2.0)
    key = jax.random.key(0)
    shapes = lambda size: jax.tree.map(jnp.shape, cell.init(key, size))  # noqa: E731
    assert shapes(4) == {"kernel": (4, 12), "bias": (8,), "recurrent_vectors": (8,)}
    assert shapes(3) == {"kernel": (3, 16), "bias": (8,), "recurrent_vectors": (8,)}
    np.testing.assert_array_equal(cell.init(key, 3)["bias"], [0] * 4 + [-2] * 4)


def test_what_does_not_fit_is_refused():
    cell, x = SRU(4), jnp.ones((2, 3))
    params, carry = cell.init(jax.random.key(0), 3), cell.initial_carry(x)
    with pytest.raises(ValueError, match=r"^SRU: `highway_scale` must be a number above 0; got 0\.0\."):
        SRU(4, highway_scale=0.0)
    with pytest.raises(ValueError, match=r"^SRU: the parameters .* 'kernel' \(D, 16\), .* 'kernel' float32\[3,12\]"):
        cell({**params, "kernel": params["kernel"][:, :12]}, carry, x)
    with pytest.raises(ValueError, match=r"^SRU: the parameters .* 'kernel' \(D, 12\), .* 'kernel' float32\[4,16\]"):
        cell({**params, "kernel": jnp.ones((4, 16))}, carry, jnp.ones((2, 4)))
    with pytest.raises(ValueError, match="made with recurrent_vectors=False, and the cell has True"):
        SRU(3, recurrent_vectors=True)(SRU(3).init(jax.random.key(0), 3), (x,), x)
    with pytest.raises(ValueError, match="made with use_bias=True, and the cell has False"):
        SRU(4, use_bias=False)(params, carry, x)
    with pytest.raises(ValueError, match=r"^SRU: the parameters .* got 'bias' float32\[8\]"):
        cell({"bias": params["bias"]}, carry, x)
