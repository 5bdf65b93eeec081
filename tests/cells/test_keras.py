"""Values and gradients are those of Keras on its JAX backend, run beside rnnscan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_on_jax as keras
import rnnscan as rs
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 3, 3, 4

# "tanh", by name, is keras.ops.tanh, which on JAX casts float64 to float32.
TANH = {"activation": jnp.tanh}


def lstm_params(weights):
    """Keras' gates i f c o are rnnscan's i f g o."""
    kernel, recurrent_kernel, bias = weights
    return {"kernel": kernel, "recurrent_kernel": recurrent_kernel, "bias": bias}


def update_first(blocks):
    """Keras' z r h, from the last axis, as rnnscan's r z n."""
    update, reset, candidate = jnp.split(blocks, 3, axis=-1)
    return jnp.concatenate([reset, update, candidate], axis=-1)


def gru_params(weights):
    """With the reset gate after the product, Keras has a bias (2, 3H): the input's row, and the hidden state's."""
    kernel, recurrent_kernel, bias = map(update_first, weights)
    params = {"kernel": kernel, "recurrent_kernel": recurrent_kernel}
    if bias.ndim == 1:
        return params | {"bias": bias}
    split = 2 * HIDDEN_SIZE
    return params | {
        "bias": bias[0].at[:split].add(bias[1, :split]),
        "recurrent_bias": bias[1, split:],
    }


LAYERS = {
    "lstm": ("LSTM", {"use_bias": True} | TANH, rs.cells.LSTM(HIDDEN_SIZE), lstm_params),
    "gru": ("GRU", {"reset_after": True} | TANH, rs.cells.GRU(HIDDEN_SIZE), gru_params),
    "gru_reset_before": (
        "GRU",
        {"reset_after": False} | TANH,
        rs.cells.GRU(HIDDEN_SIZE, reset_after=False),
        gru_params,
    ),
    "rnn_tanh": ("SimpleRNN", TANH, rs.cells.RNN(HIDDEN_SIZE), lstm_params),
    "rnn_relu": (
        "SimpleRNN",
        {"activation": "relu"},
        rs.cells.RNN(HIDDEN_SIZE, activation="relu"),
        lstm_params,
    ),
}


@pytest.mark.parametrize(("layer_type", "options", "cell", "to_params"), variants(LAYERS, ["lstm", "gru"]))
def test_values_and_gradients_are_those_of_keras(layer_type, options, cell, to_params, case_of, assert_trees_close):
    assert keras.backend.backend() == "jax"
    case = case_of(cell)
    options = {"return_sequences": True, "return_state": True, "dtype": "float64"} | options
    layer = getattr(keras.layers, layer_type)(HIDDEN_SIZE, **options)
    layer.build((BATCH, TIME, INPUT_SIZE))
    random = np.random.default_rng(0)
    weights, carry, xs = jax.tree.map(
        lambda shape: jnp.asarray(0.5 * random.normal(size=shape)),
        (
            [variable.shape for variable in layer.trainable_variables],
            ((BATCH, HIDDEN_SIZE),) * len(cell.carry_names),
            (TIME, BATCH, INPUT_SIZE),
        ),
        is_leaf=lambda leaf: isinstance(leaf, tuple) and isinstance(leaf[0], int),
    )
    seeds = [variable.value for variable in layer.non_trainable_variables]

    def run_keras(weights, carry, xs):
        (ys, *final), _ = layer.stateless_call(weights, seeds, xs.swapaxes(0, 1), initial_state=list(carry))
        return tuple(final), ys.swapaxes(0, 1)

    def run_rnnscan(weights, carry, xs):
        return rs.scan(cell, to_params(weights), carry, xs)

    expected = jax.jit(lambda *a: case.gradients(run_keras, *a))(weights, carry, xs)
    actual = jax.jit(lambda *a: case.gradients(run_rnnscan, *a))(weights, carry, xs)
    assert_trees_close(actual, expected, tolerance=1e-9)
