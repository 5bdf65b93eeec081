"""Resets of nnx.RNN and Streaming go back to the cell's own carry: windows equal the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
import rnnscan.nnx
from nnx_pairs import BATCH, FEATURES, TIME, UNITS, call, fill, make_cell, random_carry, random_inputs
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


class OwnStart(nnx.SimpleCell):
    """A cell whose own carry is not zero."""

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.full((*input_shape[:-1], self.hidden_features), 0.5)


def own_start():
    cell = OwnStart(FEATURES, UNITS, dtype=float, param_dtype=float, rngs=nnx.Rngs(0))
    nnx.update(cell, fill(nnx.state(cell, nnx.Param)))
    return cell


def of_rnnscan():
    cell = rnnscan.nnx.Cell(rs.cells.GRU(UNITS, param_dtype=float), FEATURES, rngs=nnx.Rngs(0))
    nnx.update(cell, fill(nnx.state(cell, nnx.Param)))
    return cell


CELLS = {"flax": lambda: make_cell("LSTMCell"), "own start": own_start, "rnnscan": of_rnnscan}


def random_resets(seed):
    return jnp.asarray(np.random.default_rng(seed).random((BATCH, TIME)) < 0.4)


@pytest.mark.parametrize("name", CELLS)
def test_windows_equal_the_whole(name):
    """A row that is whole, one that ends within a window, and one of length 0."""
    model, inputs = rnnscan.nnx.RNN(CELLS[name](), return_carry=True), random_inputs()
    lengths = jnp.array([TIME, 3, 0])
    valid = (jnp.arange(TIME) < lengths[:, None])[..., None]
    for size, seed in ((1, 0), (1, 1), (2, 2), (2, 3)):
        reset = random_resets(seed)
        expected = call(model, inputs, reset=reset, seq_lengths=lengths)
        carry, outputs = model.cell.initialize_carry((BATCH, FEATURES), nnx.Rngs(0)), []
        for first in range(0, TIME, size):
            window = slice(first, first + size)
            given = {"reset": reset[:, window], "seq_lengths": jnp.clip(lengths - first, 0, size)}
            carry, ys = call(model, inputs[:, window], initial_carry=carry, **given)
            outputs.append(ys)
        actual = carry, jnp.where(valid, jnp.concatenate(outputs, axis=1), 0)
        assert_trees_close(actual, (expected[0], jnp.where(valid, expected[1], 0)), tolerance=1e-9)


def test_a_stream_of_steps_equals_the_whole():
    name = "own start"
    stream = rnnscan.nnx.Streaming(rnnscan.nnx.RNN(CELLS[name]()), (BATCH, FEATURES), dtype=float)
    inputs, reset = random_inputs(), random_resets(1)
    step = nnx.jit(lambda stream, x, reset: stream(x, reset=reset))
    outputs = [step(stream, inputs[:, t], reset[:, t]) for t in range(TIME)]
    expected = call(rnnscan.nnx.RNN(CELLS[name]()), inputs, reset=reset)
    assert_trees_close(jnp.stack(outputs, axis=1), expected, tolerance=1e-9)


def test_a_stream_goes_back_to_the_carry_that_is_given_for_it():
    stream = rnnscan.nnx.Streaming(rnnscan.nnx.RNN(make_cell("SimpleCell")), (BATCH, FEATURES), dtype=float)
    inputs, there = random_inputs(), fill(jnp.empty(UNITS), seed=3)
    stream(inputs)
    reset = jnp.zeros((BATCH, TIME), bool).at[:, 0].set(True)
    outputs = stream(inputs, reset=reset, reset_to=there)
    assert_trees_close(outputs, call(rnnscan.nnx.RNN(make_cell("SimpleCell")), inputs, initial_carry=there))


def test_carries_of_one_row_are_shared_and_their_gradient_is_the_sum():
    model, inputs = rnnscan.nnx.RNN(CELLS["rnnscan"](), return_carry=True), random_inputs()
    one = (random_carry("GRUCell")[0],)

    def loss(start, there):
        outputs = model(inputs, initial_carry=start, reset=random_resets(4), reset_to=there)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(outputs))

    gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (BATCH, UNITS)), one)
    value, (of_start, of_target) = gradients(one, one)
    expected_value, expected = gradients(rows, rows)
    assert_trees_close(value, expected_value, tolerance=1e-9)
    assert_trees_close((of_start, of_target), jax.tree.map(lambda leaf: leaf.sum(0), expected), tolerance=1e-9)


@pytest.mark.parametrize("reverse", [False, True])
def test_one_row_without_a_batch_axis(reverse):
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"), return_carry=True, reverse=reverse, keep_order=True)
    inputs, reset, start = random_inputs(), random_resets(1), random_carry("SimpleCell")
    rows = call(model, inputs[1:2], initial_carry=start[1:2], reset=reset[1:2], seq_lengths=jnp.array([4]))
    row = call(model, inputs[1], initial_carry=start[1], reset=reset[1], seq_lengths=jnp.asarray(4))
    assert_trees_close(row, jax.tree.map(lambda leaf: leaf[0], rows), tolerance=1e-9)


def test_both_directions_have_carries_to_go_back_to():
    forward, backward = (rnnscan.nnx.RNN(make_cell("SimpleCell")) for _ in range(2))
    inputs, reset, there = random_inputs(), random_resets(1), random_carry("SimpleCell")
    both = rnnscan.nnx.Bidirectional(forward, backward)
    expected = [
        call(forward, inputs, reset=reset, reset_to=there),
        call(backward, inputs, reset=reset, reverse=True, keep_order=True),
    ]
    actual = both(inputs, reset=reset, reset_to=(there, None))
    assert_trees_close(actual, jnp.concatenate(expected, -1), tolerance=1e-9)


@pytest.mark.bad_input
def test_both_directions_need_a_pair_of_carries_to_go_back_to():
    both = rnnscan.nnx.Bidirectional(*(rnnscan.nnx.RNN(make_cell("SimpleCell")) for _ in range(2)))
    with pytest.raises(TypeError, match=r"`reset_to` must be the pair of carries \(forward, backward\); got"):
        both(random_inputs(), reset=random_resets(1), reset_to=random_carry("SimpleCell"))
