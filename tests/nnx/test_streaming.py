"""A streaming module goes on where its last call ended."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import rnnscan as rs
from nnx_pairs import BATCH, FEATURES, TIME, UNITS, call, make_cell, random_inputs
from rnnscan.nnx import RNN, Cell, Streaming, StreamState
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


@nnx.jit
def go_on(stream, inputs, **given):
    return stream(inputs, **given)


def make(name="LSTMCell", **options):
    return Streaming(RNN(make_cell(name), **options), (BATCH, FEATURES))


def whole():
    return call(RNN(make_cell("LSTMCell")), random_inputs())


@pytest.mark.parametrize("apply", [go_on, lambda stream, inputs: stream(inputs)], ids=["jit", "eager"])
def test_steps_and_windows_are_the_whole_sequence(apply):
    stream, inputs = make(), random_inputs()
    parts = [
        apply(stream, inputs[:, 0])[:, None],
        apply(stream, inputs[:, 1])[:, None],
        apply(stream, inputs[:, 2:5]),
        apply(stream, inputs[:, 5])[:, None],
    ]
    assert_trees_close(jnp.concatenate(parts, axis=1), whole())
    carry = call(RNN(make_cell("LSTMCell")), inputs, return_carry=True)[0]
    assert_trees_close(jax.tree.leaves(stream.carry), [*carry])


def test_windows_are_time_major_where_the_rnn_is():
    stream, xs = make(time_major=True), jnp.swapaxes(random_inputs(), 0, 1)
    outputs = jnp.concatenate([go_on(stream, xs[:4]), go_on(stream, xs[4])[None], go_on(stream, xs[5:])])
    assert_trees_close(jnp.swapaxes(outputs, 0, 1), whole())


def test_reset_state_starts_anew():
    stream = make()
    first = go_on(stream, random_inputs())
    assert np.abs(go_on(stream, random_inputs()) - first).max() > 1e-3
    stream.reset_state()
    assert_trees_close(go_on(stream, random_inputs()), first)


def test_rows_are_reset_to_the_initial_carry():
    """And not to the carry that the last call left."""
    stream, inputs = make(), random_inputs()
    go_on(stream, inputs)
    outputs = go_on(stream, inputs[:, 0], reset=jnp.array([True, False, False]))
    np.testing.assert_allclose(outputs[0], whole()[0, 0], rtol=1e-12)
    assert np.abs(outputs[1:] - whole()[1:, 0]).max() > 1e-3
    window = go_on(stream, inputs, reset=jnp.zeros((BATCH, TIME), bool).at[1, 2].set(True))
    np.testing.assert_allclose(window[1, 2:], call(RNN(make_cell("LSTMCell")), inputs[1, 2:]), rtol=1e-9)


def test_rows_go_on_after_their_last_valid_step():
    stream, inputs = make(), random_inputs()
    go_on(stream, inputs[:, :3], seq_lengths=jnp.array([1, 2, 3]))
    outputs = go_on(stream, inputs[:, 3])
    for row in range(BATCH):
        steps = jnp.concatenate([inputs[row, : row + 1], inputs[row, 3:4]])
        np.testing.assert_allclose(outputs[row], call(RNN(make_cell("LSTMCell")), steps)[-1], rtol=1e-9)


def test_the_state_can_be_stored_and_put_back():
    stream, inputs = make(), random_inputs()
    go_on(stream, inputs[:, :4])
    stored = nnx.to_pure_dict(nnx.state(stream, StreamState))
    assert [leaf.shape for leaf in jax.tree.leaves(stored)] == [(BATCH, UNITS)] * 2
    rest = go_on(stream, inputs[:, 4:])
    another = make()
    nnx.update(another, stored)
    assert_trees_close(go_on(another, inputs[:, 4:]), rest)


def test_a_random_carry_is_drawn_anew():
    with pytest.warns(UserWarning, match="carry_init is provided"):
        cell = make_cell("SimpleCell", carry_init=nnx.initializers.normal())
    stream = Streaming(RNN(cell), (BATCH, FEATURES))
    first = stream.carry[...]
    stream.reset_state()
    second = stream.carry[...]
    assert (first != second).all()
    stream.reset_state(nnx.Rngs(0))
    assert (stream.carry[...] != second).all()


def test_random_choices():
    cell = Cell(rs.dropout(rs.cells.RNN(4), rate=0.5), FEATURES, rngs=nnx.Rngs(0))
    key, inputs = jax.random.key(1), random_inputs()
    stream = Streaming(RNN(cell), (BATCH, FEATURES), dtype=float)
    parts = [stream(inputs[:, :4], key=key), stream(inputs[:, 4:], key=key, first_step=4)]
    assert_trees_close(jnp.concatenate(parts, axis=1), call(RNN(cell), inputs, key=key))


def test_training_on_windows():
    """The gradients are those of each window alone, from the carry that the window before it left."""
    stream, target = make("SimpleCell"), jnp.cos(random_inputs(BATCH, TIME, UNITS))
    optimizer = nnx.Optimizer(stream, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def train_step(stream, optimizer, inputs, target):
        def loss(stream):
            return ((stream(inputs) - target) ** 2).mean()

        value, gradients = nnx.value_and_grad(loss)(stream)
        optimizer.update(stream, gradients)
        return value

    cell = make_cell("SimpleCell")
    rnn = RNN(cell, return_carry=True)
    carry = None
    for window in (slice(0, 3), slice(3, 6)):
        inputs, wanted = random_inputs()[:, window], target[:, window]
        graphdef, params, rest = nnx.split(rnn, nnx.Param, ...)

        def loss(params, carry=carry, inputs=inputs, wanted=wanted, graphdef=graphdef, rest=rest):
            carry, outputs = nnx.merge(graphdef, params, rest)(inputs, initial_carry=carry)
            return ((outputs - wanted) ** 2).mean(), carry

        (expected, carry), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        np.testing.assert_allclose(train_step(stream, optimizer, inputs, wanted), expected, rtol=1e-9)
        nnx.update(rnn, jax.tree.map(lambda param, gradient: param - 0.1 * gradient, params, gradients))
    assert_trees_close(
        nnx.to_pure_dict(nnx.state(stream.rnn.cell, nnx.Param)),
        nnx.to_pure_dict(nnx.state(cell, nnx.Param)),
        tolerance=1e-9,
    )
