"""Resets of linen.RNN go back to the cell's own carry: windows equal the whole, and steps equal a loop in Python."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from flax_cells import BATCH, HIDDEN_SIZE, INPUT_SIZE, PLAIN_KERNEL, draw, variables_of
from rnnscan import linen
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

TIME = 6
START = nn.initializers.normal(0.5)


class OwnStart(nn.SimpleCell):
    """A cell whose own carry is not zero."""

    start: float = 0.5

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.full((*input_shape[:-1], self.features), self.start)


CELLS = {
    "flax": lambda: nn.LSTMCell(HIDDEN_SIZE, param_dtype=float, carry_init=START, **PLAIN_KERNEL),
    "own start": lambda: OwnStart(HIDDEN_SIZE, param_dtype=float, **PLAIN_KERNEL),
    "rnnscan": lambda: rs.cells.LSTM(HIDDEN_SIZE, param_dtype=float),
}


def make(name, **options):
    model = linen.RNN(CELLS[name](), return_carry=True, **options)
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    return model, variables_of(model, inputs), inputs


def random_resets(seed):
    return jnp.asarray(np.random.default_rng(seed).random((BATCH, TIME)) < 0.4)


def runner(model, variables):
    return jax.jit(lambda inputs, **given: model.apply(variables, inputs, **given))


def own_carry(model, inputs):
    x = inputs[:, 0]
    return model.cell.initial_carry(x) if isinstance(model.cell, linen.Cell) else first_carry(model.cell)


def first_carry(cell):
    return cell.initialize_carry(jax.random.key(0), (BATCH, INPUT_SIZE))


@pytest.mark.parametrize("name", variants(CELLS.keys(), ["own start"]))
def test_windows_equal_the_whole(name):
    """A row that is whole, one that ends within a window, and one of length 0."""
    model, variables, inputs = make(name)
    run, lengths = runner(model, variables), jnp.array([TIME, 3, 0])
    valid = (jnp.arange(TIME) < lengths[:, None])[..., None]
    for size, seed in ((1, 0), (1, 1), (2, 2), (2, 3)):
        reset = random_resets(seed)
        expected = run(inputs, reset=reset, seq_lengths=lengths)
        carry, outputs = own_carry(model, inputs), []
        for first in range(0, TIME, size):
            window = slice(first, first + size)
            left = jnp.clip(lengths - first, 0, size)
            carry, ys = run(inputs[:, window], initial_carry=carry, reset=reset[:, window], seq_lengths=left)
            outputs.append(ys)
        actual = carry, jnp.where(valid, jnp.concatenate(outputs, axis=1), 0)
        assert_trees_close(actual, (expected[0], jnp.where(valid, expected[1], 0)), tolerance=1e-9)


def test_steps_equal_a_loop_in_python():
    model, variables, inputs = make("flax")
    reset, passed = random_resets(1), tuple(draw((BATCH, HIDDEN_SIZE), seed=seed) for seed in (2, 3))
    cell = CELLS["flax"]()
    own = first_carry(cell)
    step = jax.jit(lambda carry, x: cell.apply({"params": variables["params"]["cell"]}, carry, x))
    run = runner(model, variables)

    def loop(target):
        carry, ys = passed, []
        for t in range(TIME):
            carry = jax.tree.map(lambda a, b, t=t: jnp.where(reset[:, t, None], a, b), target, carry)
            carry, y = step(carry, inputs[:, t])
            ys.append(y)
        return carry, jnp.stack(ys, axis=1)

    actual = run(inputs, initial_carry=passed, reset=reset)
    assert_trees_close(actual, loop(own), tolerance=1e-9)
    there = tuple(draw((HIDDEN_SIZE,), seed=seed) for seed in (4, 5))
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (BATCH, HIDDEN_SIZE)), there)
    assert_trees_close(run(inputs, initial_carry=passed, reset=reset, reset_to=there), loop(rows), tolerance=1e-9)


def test_carries_of_one_row_are_shared_and_their_gradient_is_the_sum():
    model, variables, inputs = make("flax")
    one = tuple(draw((HIDDEN_SIZE,), seed=seed) for seed in (2, 3))

    def loss(start, there):
        carry, outputs = model.apply(variables, inputs, initial_carry=start, reset=random_resets(4), reset_to=there)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves((carry, outputs)))

    gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (BATCH, HIDDEN_SIZE)), one)
    value, (of_start, of_target) = gradients(one, one)
    expected_value, expected = gradients(rows, rows)
    assert_trees_close(value, expected_value, tolerance=1e-9)
    assert_trees_close((of_start, of_target), jax.tree.map(lambda leaf: leaf.sum(0), expected), tolerance=1e-9)


@pytest.mark.parametrize("reverse", variants([False, True], [True]))
def test_one_row_without_a_batch_axis(reverse):
    model, variables, inputs = make("rnnscan", reverse=reverse, keep_order=True)
    reset = random_resets(1)
    run = runner(model, variables)
    start = jax.tree.map(lambda leaf: leaf[None], carry := tuple(draw((HIDDEN_SIZE,), seed=seed) for seed in (2, 3)))
    rows = run(inputs[1:2], initial_carry=start, reset=reset[1:2], seq_lengths=jnp.array([4]))
    row = run(inputs[1], initial_carry=carry, reset=reset[1], seq_lengths=jnp.asarray(4))
    assert_trees_close(row, jax.tree.map(lambda leaf: leaf[0], rows), tolerance=1e-9)


def test_both_directions_have_carries_to_go_back_to():
    cell = rs.cells.GRU(HIDDEN_SIZE, param_dtype=float)
    model = linen.Bidirectional(linen.RNN(cell), linen.RNN(cell))
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    variables = variables_of(model, inputs)
    run = runner(model, variables)
    reset, there = random_resets(1), (draw((BATCH, HIDDEN_SIZE), seed=2),)
    parts = {name: {"params": variables["params"][f"{name}_rnn"]} for name in ("forward", "backward")}
    options = {"reset": reset}
    forward = runner(linen.RNN(cell), parts["forward"])(inputs, reset_to=there, **options)
    backward = runner(linen.RNN(cell, reverse=True, keep_order=True), parts["backward"])(inputs, **options)
    expected = jnp.concatenate([forward, backward], -1)
    assert_trees_close(run(inputs, reset=reset, reset_to=(there, None)), expected, tolerance=1e-9)
    with pytest.raises(TypeError, match=r"`reset_to` must be the pair of carries \(forward, backward\); got"):
        model.apply(variables, inputs, reset=reset, reset_to=there)
    with pytest.raises(ValueError, match=r"linen\.Bidirectional: `reset_to` is the carry that `reset` goes back to"):
        model.apply(variables, inputs, reset_to=(there, None))
