"""A cell of rnnscan as a module of flax.nnx."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
import rnnscan.nnx
from nnx_pairs import BATCH, FEATURES, assert_same, call, random_inputs
from zoo.case import assert_trees_close


pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.typed]

CELLS = {
    "lstm": rs.cells.LSTM(4, param_dtype=jnp.float64),
    "stack": rs.stack(rs.cells.GRU(4), rs.residual(rs.cells.RNN(4))),
    "complex": rs.cells.LRU(4),
}


def module(cell, features=FEATURES):
    return rnnscan.nnx.Cell(cell, features, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_it_owns_the_parameters_of_the_cell_and_nothing_else(cell):
    params = cell.init(nnx.Rngs(0).params(), FEATURES)
    state = nnx.state(rnnscan.nnx.RNN(module(cell), rngs=False))
    assert_trees_close(nnx.to_pure_dict(state), {"cell": {"params": params}})
    assert all(
        isinstance(leaf, nnx.Param)
        for leaf in jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    )


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_an_rnn_makes_one_of_a_cell_of_rnnscan(cell):
    inputs = random_inputs()
    short = rnnscan.nnx.RNN(cell, in_features=FEATURES, rngs=nnx.Rngs(0))
    whole = rnnscan.nnx.RNN(module(cell), rngs=nnx.Rngs(0))
    assert_trees_close(*(nnx.to_pure_dict(nnx.state(rnn, nnx.Param)) for rnn in (short, whole)))
    assert_trees_close(short(inputs), whole(inputs))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_it_runs_as_rnnscan_runs_the_cell(cell):
    """In this RNN, and in Flax's own."""
    inputs = random_inputs()
    xs = jnp.swapaxes(inputs, 0, 1)
    params = cell.init(nnx.Rngs(0).params(), FEATURES)
    carry, ys = jax.jit(lambda *arguments: rs.scan(cell, *arguments))(params, cell.initial_carry(xs[0]), xs)
    expected = (carry, jnp.swapaxes(ys, 0, 1))
    assert_trees_close(call(rnnscan.nnx.RNN(module(cell)), inputs, return_carry=True), expected)
    flax_model = nnx.RNN(module(cell))
    assert_trees_close(call(flax_model, inputs, initial_carry=cell.initial_carry(xs[0]), return_carry=True), expected)


def test_flax_runs_it_with_the_same_gradients():
    models = [kind(module(CELLS["lstm"]), return_carry=True) for kind in (nnx.RNN, rnnscan.nnx.RNN)]
    assert_same(models, random_inputs())


def test_one_step():
    cell = module(CELLS["lstm"])
    carry = cell.initialize_carry((BATCH, FEATURES))
    assert_trees_close(carry, CELLS["lstm"].initial_carry(jnp.zeros((BATCH, FEATURES))))
    new_carry, y = cell(carry, random_inputs()[:, 0])
    assert_trees_close(new_carry[0], y)


def test_a_carry_that_is_not_zeros():
    cell = module(CELLS["lstm"])
    ones = cell.initialize_carry((BATCH, FEATURES), nnx.Rngs(0), nnx.initializers.ones)
    assert_trees_close(ones, (jnp.ones((BATCH, 4)),) * 2)
    random = cell.initialize_carry((BATCH, FEATURES), nnx.Rngs(0), nnx.initializers.normal())
    assert (random[0] != random[1]).all()


def test_the_carry_is_typed_like_the_inputs():
    """But where only a shape is known, like the parameters."""
    cell = module(rs.cells.GRU(4, param_dtype=jnp.float32))
    carry, _ = rnnscan.nnx.RNN(cell, return_carry=True)(random_inputs().astype(jnp.bfloat16))
    assert carry[0].dtype == jnp.bfloat16
    assert cell.initialize_carry((BATCH, FEATURES))[0].dtype == jnp.float32


@pytest.mark.parametrize(
    "wrap", [lambda cell: cell, rs.stack, lambda cell: rs.dropout(cell, 0.1)], ids=["bare", "stack", "dropout"]
)
def test_spatial_axes(wrap):
    """Where the axis of steps is, depends on them."""
    cell = module(wrap(rs.cells.ConvLSTM(2, kernel_size=(3, 3))))
    assert cell.num_feature_axes == 3
    assert rnnscan.nnx.RNN(cell)(random_inputs(BATCH, 2, 5, 4, FEATURES)).shape == (BATCH, 2, 5, 4, 2)


def test_a_cell_of_ones_own():
    class Sum:
        def init(self, key, input_size):
            return {}

        def initial_carry(self, x):
            return jnp.zeros_like(x)

        def __call__(self, params, carry, x):
            return carry + x, carry + x

    np.testing.assert_allclose(rnnscan.nnx.RNN(module(Sum()))(random_inputs()), jnp.cumsum(random_inputs(), axis=1))


def test_random_choices_are_made_by_key():
    cell = rs.dropout(rs.cells.RNN(4), rate=0.5)
    model, inputs, key = rnnscan.nnx.RNN(module(cell)), random_inputs(), jax.random.key(3)
    assert_trees_close(call(model, inputs), call(rnnscan.nnx.RNN(module(rs.cells.RNN(4))), inputs))
    xs = jnp.swapaxes(inputs, 0, 1)
    _, expected = rs.layer(cell)(cell.init(nnx.Rngs(0).params(), FEATURES), xs, key=key)
    actual = call(model, inputs, key=key)
    assert_trees_close(actual, jnp.swapaxes(expected, 0, 1))
    carry, first = call(model, inputs[:, :2], key=key, return_carry=True)
    rest = model(inputs[:, 2:], initial_carry=carry, key=key, first_step=2)
    assert_trees_close(jnp.concatenate([first, rest], axis=1), actual)
