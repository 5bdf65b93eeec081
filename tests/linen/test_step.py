"""One step of linen.RNN is a sequence of one, and the port of PureJaxRL's ScannedRNN loads its checkpoints."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from flax_cells import BATCH, CELLS, HIDDEN_SIZE, INPUT_SIZE, cell_and_inputs, draw, fill
from rnnscan import linen
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


def steps_of(model, variables, inputs, carry, reset):
    """Steps one at a time over time-major inputs: the last carry and the outputs."""
    step = jax.jit(partial(model.apply, method="step"))
    outputs = []
    for x, first in zip(inputs, reset, strict=True):
        carry, y = step(variables, x, carry, reset=first)
        outputs.append(y)
    return carry, jnp.stack(outputs)


def random_resets(steps, seed=0):
    reset = jnp.asarray(np.random.default_rng(seed).random((steps, BATCH)) < 0.4)
    assert reset[1:].any()
    assert not reset.all()
    return reset


@pytest.mark.parametrize("name", variants(CELLS.keys(), ["LSTMCell", "ConvLSTMCell"]))
def test_steps_equal_the_sequence(name):
    cell, inputs = cell_and_inputs(name, time_major=True)
    model = linen.RNN(cell, time_major=True, return_carry=True)
    variables = fill(jax.eval_shape(model.init, jax.random.key(0), inputs))
    of_step = jax.eval_shape(partial(model.init, method="step"), jax.random.key(0), inputs[0])
    assert jax.tree.structure(of_step) == jax.tree.structure(variables)
    reset = random_resets(len(inputs))
    carry = jax.tree.map(lambda leaf: 0.3 + leaf, cell.initialize_carry(jax.random.key(1), inputs[0].shape))
    expected = jax.jit(model.apply)(variables, inputs, initial_carry=carry, reset=reset)
    assert_trees_close(steps_of(model, variables, inputs, carry, reset), expected, tolerance=1e-9)


def test_steps_of_a_cell_of_rnnscan_whatever_the_layout_of_sequences():
    model = linen.RNN(rs.cells.LSTM(HIDDEN_SIZE, param_dtype=float))
    inputs = draw((6, BATCH, INPUT_SIZE))
    variables = fill(jax.eval_shape(model.init, jax.random.key(0), inputs))
    reset = random_resets(6)
    there = tuple(draw((HIDDEN_SIZE,), seed=seed) for seed in (2, 3))
    expected = model.apply(variables, inputs, time_major=True, return_carry=True, reset=reset, reset_to=there)
    carry, outputs = None, []
    for x, first in zip(inputs, reset, strict=True):
        carry, y = model.apply(variables, x, carry, reset=first, reset_to=there, method="step")
        outputs.append(y)
    assert_trees_close((carry, jnp.stack(outputs)), expected, tolerance=1e-9)


def test_one_row_and_gradients():
    model = linen.RNN(nn.GRUCell(HIDDEN_SIZE, param_dtype=float), return_carry=True)
    row = draw((4, INPUT_SIZE))
    variables = fill(jax.eval_shape(model.init, jax.random.key(0), row))

    def by_steps(variables):
        carry = None
        for x in row:
            carry, y = model.apply(variables, x, carry, method="step")
        return jnp.sum(jnp.sin(y))

    expected = jax.value_and_grad(lambda variables: jnp.sum(jnp.sin(model.apply(variables, row)[1][-1])))(variables)
    assert_trees_close(jax.jit(jax.value_and_grad(by_steps))(variables), expected, tolerance=1e-9)


def test_a_step_has_no_loop():
    model = linen.RNN(nn.GRUCell(HIDDEN_SIZE))
    x = jnp.ones((BATCH, INPUT_SIZE), jnp.float32)
    variables = jax.eval_shape(partial(model.init, method="step"), jax.random.key(0), x)
    compiled = jax.jit(partial(model.apply, method="step")).lower(variables, x).compile()
    assert " while(" not in compiled.as_text()


def test_a_reversed_rnn_has_no_steps():
    model = linen.RNN(nn.GRUCell(HIDDEN_SIZE), reverse=True)
    with pytest.raises(ValueError, match=r"linen\.RNN\.step: the RNN must run forward; got reverse=True\. In reverse"):
        model.init(jax.random.key(0), jnp.ones((BATCH, INPUT_SIZE)), method="step")


@pytest.mark.bad_input
def test_a_reset_of_another_shape_is_refused():
    model = linen.RNN(nn.GRUCell(HIDDEN_SIZE))
    with pytest.raises(ValueError, match=r"`reset` must be booleans \(1, 3\)"):
        model.init(jax.random.key(0), jnp.ones((BATCH, INPUT_SIZE)), reset=jnp.ones(2, bool), method="step")


# PureJaxRL's ppo_rnn.py, as its author wrote it. The name GRUCell_0 is taken by the cell of `initialize_carry`.
class FlaxScannedRNN(nn.Module):
    @partial(nn.scan, variable_broadcast="params", in_axes=0, out_axes=0, split_rngs={"params": False})
    @nn.compact
    def __call__(self, carry, x):
        rnn_state = carry
        ins, resets = x
        rnn_state = jnp.where(resets[:, np.newaxis], self.initialize_carry(ins.shape[0], ins.shape[1]), rnn_state)
        new_rnn_state, y = nn.GRUCell(features=ins.shape[1])(rnn_state, ins)
        return new_rnn_state, y

    @staticmethod
    def initialize_carry(batch_size, hidden_size):
        cell = nn.GRUCell(features=hidden_size)
        return cell.initialize_carry(jax.random.PRNGKey(0), (batch_size, hidden_size))


# Its port, as in docs/migrating/flax.md.
class ScannedRNN(nn.Module):
    @nn.compact
    def __call__(self, carry, x):
        ins, resets = x
        cell = nn.GRUCell(ins.shape[-1], name="GRUCell_1")
        rnn = linen.RNN(cell, time_major=True, return_carry=True)
        if ins.ndim == 2:
            return rnn.step(ins, carry, reset=resets)
        return rnn(ins, initial_carry=carry, reset=resets)


class ActorCritic(nn.Module):
    rnn: type

    @nn.compact
    def __call__(self, hidden, x):
        observations, dones = x
        embedding = nn.relu(nn.Dense(HIDDEN_SIZE)(observations))
        hidden, embedding = self.rnn(name="ScannedRNN_0")(hidden, (embedding, dones))
        return hidden, nn.Dense(2)(embedding), jnp.squeeze(nn.Dense(1)(embedding), axis=-1)


def test_the_port_of_purejaxrls_scanned_rnn_acts_and_learns_from_its_checkpoint():
    before, after = ActorCritic(FlaxScannedRNN), ActorCritic(ScannedRNN)
    observations, hidden, dones = draw((7, BATCH, INPUT_SIZE)), draw((BATCH, HIDDEN_SIZE), seed=1), random_resets(7)
    variables = before.init(jax.random.key(0), hidden, (observations, dones))
    assert_trees_close(after.init(jax.random.key(0), hidden, (observations, dones)), variables, tolerance=0)
    assert_trees_close(after.init(jax.random.key(0), hidden, (observations[0], dones[0])), variables, tolerance=0)
    checkpoint = fill(jax.tree.map(lambda leaf: leaf.astype(float), variables))

    def loss(model, variables, hidden):
        outputs = model.apply(variables, hidden, (observations, dones))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in outputs), outputs

    def train(model):
        return jax.jit(jax.value_and_grad(partial(loss, model), argnums=(0, 1), has_aux=True))(checkpoint, hidden)

    learnt = train(after)
    assert_trees_close(learnt, train(before), tolerance=1e-9)
    act, outputs = jax.jit(after.apply), []
    for observation, done in zip(observations, dones, strict=True):
        hidden, *output = act(checkpoint, hidden, (observation, done))
        outputs.append(output)
    outputs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
    assert_trees_close((hidden, *outputs), learnt[0][1], tolerance=1e-9)
