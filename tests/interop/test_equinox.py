"""Nets of Equinox's cells compute what the cells compute, run beside rnnscan, inside filter_jit and filter_grad too."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan import interop


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 2, 3, 4
CELLS = {"LSTMCell": 2, "GRUCell": 1}


def build(name, use_bias):
    """A cell with random weights, inputs and a carry of rnnscan."""
    random = np.random.default_rng(0)
    cell = getattr(eqx.nn, name)(INPUT_SIZE, HIDDEN_SIZE, use_bias, key=jax.random.key(0))
    arrays, static = eqx.partition(cell, eqx.is_array)
    arrays = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), arrays)
    carry = tuple(jnp.asarray(random.normal(size=(BATCH, HIDDEN_SIZE))) for _ in range(CELLS[name]))
    return eqx.combine(arrays, static), jnp.asarray(random.normal(size=(TIME, BATCH, INPUT_SIZE))), carry


def run_cell(cell, xs, carry):
    """Equinox's own way, `lax.scan` over a cell of one row."""

    def step(state, x):
        state = jax.vmap(cell)(x, state)
        return state, state[0] if isinstance(state, tuple) else state

    state, ys = jax.lax.scan(step, carry if len(carry) == 2 else carry[0], xs)
    return state if isinstance(state, tuple) else (state,), ys


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_the_net_of_a_cell_computes_what_the_cell_does(name, use_bias, assert_trees_close):
    cell, xs, carry = build(name, use_bias)
    net, params = interop.from_equinox(cell)
    assert net.cell.use_bias == use_bias
    assert_trees_close(jax.jit(net)(params, xs, carry=carry), run_cell(cell, xs, carry), tolerance=1e-9)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_takes_the_arrays_of_a_net(name, use_bias, assert_equal):
    cell, *_ = build(name, use_bias)
    other = getattr(eqx.nn, name)(INPUT_SIZE, HIDDEN_SIZE, use_bias, key=jax.random.key(1))
    arrays = interop.to_equinox(*interop.from_equinox(cell))
    other = eqx.tree_at(lambda cell: [getattr(cell, name) for name in arrays], other, list(arrays.values()))
    assert_equal(other, cell)


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_gets_its_gradients(name, assert_trees_close):
    cell, xs, carry = build(name, True)

    def loss(cell):
        net, params = interop.from_equinox(cell)
        return jnp.sum(jnp.sin(net(params, xs, carry=carry)[1]))

    actual = eqx.filter_jit(eqx.filter_value_and_grad(loss))(cell)
    expected = eqx.filter_value_and_grad(lambda cell: jnp.sum(jnp.sin(run_cell(cell, xs, carry)[1])))(cell)
    assert_trees_close(actual, expected, tolerance=1e-9)


def test_other_modules_are_refused():
    linear = eqx.nn.Linear(3, 4, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"from_equinox: the cell must be one of 'LSTMCell', 'GRUCell'; got 'Linear'"):
        interop.from_equinox(linear)
