"""Nets of Keras layers compute what the layers compute, run beside rnnscan on Keras' JAX backend."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_on_jax as keras
import rnnscan as rs
from rnnscan import interop
from tiers import variants


pytestmark = [
    pytest.mark.usefixtures("x64"),
    # Of Keras' own get_weights, with a numpy that is newer than it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 2, 3, 4
RANDOM = np.random.default_rng(0)

# "tanh" and "sigmoid", by name, are keras.ops', of which tanh on JAX casts float64 to float32.
TANH = {"activation": jnp.tanh}
# Bidirectional makes its layers anew from their configurations, so it cannot have a function.
SOFTSIGN = {"activation": "softsign"}


def build(layer_type, input_shape=(INPUT_SIZE,), units=HIDDEN_SIZE, bidirectional=None, **options):
    """A layer that returns all steps, with random weights."""
    layer = layer_type(units, return_sequences=True, dtype="float64", **options)
    if bidirectional is not None:
        layer = keras.layers.Bidirectional(layer, merge_mode=bidirectional, dtype="float64")
    layer.build((BATCH, TIME, *input_shape))
    layer.set_weights([0.5 * RANDOM.normal(size=weight.shape) for weight in layer.get_weights()])
    return layer


def outputs_of(layer, xs):
    """What the layer computes, time-major."""
    return np.moveaxis(jax.jit(layer)(np.moveaxis(xs, 0, 1)), 1, 0)


LAYERS = {
    "lstm": lambda: build(keras.layers.LSTM, **TANH),
    "lstm_no_bias": lambda: build(keras.layers.LSTM, use_bias=False, **TANH),
    "lstm_hard_sigmoid": lambda: build(keras.layers.LSTM, recurrent_activation="hard_sigmoid", **TANH),
    "lstm_relu": lambda: build(keras.layers.LSTM, activation="relu"),
    "gru": lambda: build(keras.layers.GRU, **TANH),
    "gru_no_bias": lambda: build(keras.layers.GRU, use_bias=False, **TANH),
    "gru_before": lambda: build(keras.layers.GRU, reset_after=False, **TANH),
    "gru_before_no_bias": lambda: build(keras.layers.GRU, reset_after=False, use_bias=False, **TANH),
    "rnn": lambda: build(keras.layers.SimpleRNN, activation="relu"),
    "bidirectional_lstm": lambda: build(keras.layers.LSTM, bidirectional="concat", **SOFTSIGN),
    "bidirectional_gru_sum": lambda: build(keras.layers.GRU, bidirectional="sum", **SOFTSIGN),
    "bidirectional_gru_ave": lambda: build(keras.layers.GRU, bidirectional="ave", **SOFTSIGN),
    "bidirectional_rnn_mul": lambda: build(keras.layers.SimpleRNN, bidirectional="mul", **SOFTSIGN),
    "conv_lstm_1d": lambda: build(keras.layers.ConvLSTM1D, (6, INPUT_SIZE), kernel_size=3, padding="same", **TANH),
    "conv_lstm_2d": lambda: build(
        keras.layers.ConvLSTM2D, (6, 5, INPUT_SIZE), kernel_size=(3, 2), strides=(2, 1), **TANH
    ),
    "conv_lstm_3d": lambda: build(
        keras.layers.ConvLSTM3D, (4, 3, 4, INPUT_SIZE), kernel_size=2, padding="same", dilation_rate=(1, 1, 2), **TANH
    ),
}
SHAPES = {"conv_lstm_1d": (6, 3), "conv_lstm_2d": (6, 5, 3), "conv_lstm_3d": (4, 3, 4, 3)}


QUICK = ["lstm_hard_sigmoid", "gru_before_no_bias", "bidirectional_rnn_mul", "conv_lstm_1d"]


# Each kind of layer occurs.
@pytest.mark.parametrize("name", variants(LAYERS.keys(), QUICK))
def test_the_net_of_a_layer_computes_what_the_layer_does(name, assert_trees_close):
    layer = LAYERS[name]()
    xs = RANDOM.normal(size=(TIME, BATCH, *SHAPES.get(name, (INPUT_SIZE,))))
    net, params = interop.from_keras(layer)
    _, ys = jax.jit(net)(params, jnp.asarray(xs))
    assert_trees_close(ys, outputs_of(layer, xs), tolerance=1e-9)


@pytest.mark.parametrize(
    "name", variants(["lstm_no_bias", "gru", "bidirectional_lstm", "conv_lstm_2d"], ["gru", "conv_lstm_2d"])
)
def test_a_layer_with_the_weights_of_a_net_computes_what_the_net_does(name, random_params, assert_trees_close):
    layer = LAYERS[name]()
    xs = RANDOM.normal(size=(TIME, BATCH, *SHAPES.get(name, (INPUT_SIZE,))))
    net, _ = interop.from_keras(layer)
    params = random_params(net)
    layer.set_weights(interop.to_keras(net, params))
    _, ys = jax.jit(net)(params, jnp.asarray(xs))
    assert_trees_close(ys, outputs_of(layer, xs), tolerance=1e-9)


def test_a_layer_that_goes_backwards_has_the_outputs_of_a_net_in_reverse_last_first(assert_trees_close):
    layer = build(keras.layers.LSTM, go_backwards=True, **TANH)
    xs = RANDOM.normal(size=(TIME, BATCH, INPUT_SIZE))
    with pytest.raises(ValueError, match=r"`go_backwards` must be False, .*; got True.*reverse=True"):
        interop.from_keras(layer)
    net, params = interop.from_keras_weights(layer.get_weights(), "LSTM", reverse=True)
    _, ys = jax.jit(net)(params, jnp.asarray(xs))
    assert_trees_close(ys[::-1], outputs_of(layer, xs), tolerance=1e-9)


@pytest.mark.parametrize("name", interop.keras._ACTIVATIONS)
def test_activations_are_keras_by_name(name):
    layer = build(keras.layers.LSTM, activation=name, recurrent_activation="sigmoid")
    net, _ = interop.from_keras(layer)
    z = np.linspace(-4, 4, 33)
    expected = np.asarray(keras.activations.get(name)(z))
    np.testing.assert_allclose(rs.cells.activations.activate(net.cell.activation, jnp.asarray(z)), expected, atol=1e-6)


def test_two_directions_may_differ(assert_trees_close):
    forward = keras.layers.GRU(4, return_sequences=True, dtype="float64", **SOFTSIGN)
    backward = keras.layers.GRU(
        2, return_sequences=True, go_backwards=True, reset_after=False, activation="relu", dtype="float64"
    )
    layer = keras.layers.Bidirectional(forward, backward_layer=backward, dtype="float64")
    layer.build((BATCH, TIME, INPUT_SIZE))
    xs = RANDOM.normal(size=(TIME, BATCH, INPUT_SIZE))
    net, params = interop.from_keras(layer)
    assert net.backward == rs.cells.GRU(2, reset_after=False, activation="relu", param_dtype="float64")
    _, ys = jax.jit(net)(params, jnp.asarray(xs))
    assert_trees_close(ys, outputs_of(layer, xs), tolerance=1e-9)


def test_what_nothing_is_like_is_refused():
    with pytest.raises(ValueError, match=r"the layer must be one of 'SimpleRNN', .*'Bidirectional'; got Dense\."):
        interop.from_keras(keras.layers.Dense(3))
    with pytest.raises(ValueError, match=r"the layer must be built; got 'unbuilt'\."):
        interop.from_keras(keras.layers.LSTM(3, name="unbuilt"))
    with pytest.raises(ValueError, match=r"`merge_mode` must be one of 'concat', 'sum', 'ave', 'mul'; got None\."):
        interop.from_keras(keras.layers.Bidirectional(keras.layers.LSTM(3), merge_mode=None))
    with pytest.raises(ValueError, match=r"must be one of 'elu', .*; got Keras's 'softmax'\. Convert only the weights"):
        interop.from_keras(build(keras.layers.LSTM, activation="softmax"))
    layer = build(keras.layers.ConvLSTM1D, (INPUT_SIZE, 6), kernel_size=3, data_format="channels_first")
    with pytest.raises(ValueError, match=r"`data_format` must be 'channels_last'; got 'channels_first'\."):
        interop.from_keras(layer)
