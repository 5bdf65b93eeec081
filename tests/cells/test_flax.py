"""Values and gradients are those of flax.linen, run beside rnnscan."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 3, 3, 4


def columns(params, names, what):
    return jnp.concatenate([params[name][what] for name in names], axis=-1)


def lstm_params(params):
    """Flax has one dense layer a gate, and the biases on those of the hidden state."""
    return {
        "kernel": columns(params, ["ii", "if", "ig", "io"], "kernel"),
        "recurrent_kernel": columns(params, ["hi", "hf", "hg", "ho"], "kernel"),
        "bias": columns(params, ["hi", "hf", "hg", "ho"], "bias"),
    }


def gru_params(params):
    """Flax has biases on the dense layers of the input, and on hn."""
    return {
        "kernel": columns(params, ["ir", "iz", "in"], "kernel"),
        "recurrent_kernel": columns(params, ["hr", "hz", "hn"], "kernel"),
        "bias": columns(params, ["ir", "iz", "in"], "bias"),
        "recurrent_bias": params["hn"]["bias"],
    }


def rnn_params(params):
    return {"kernel": params["i"]["kernel"], "recurrent_kernel": params["h"]["kernel"], "bias": params["i"]["bias"]}


CELLS = {
    "lstm": (nn.LSTMCell, rs.cells.LSTM(HIDDEN_SIZE), lstm_params),
    "optimized_lstm": (nn.OptimizedLSTMCell, rs.cells.LSTM(HIDDEN_SIZE), lstm_params),
    "gru": (nn.GRUCell, rs.cells.GRU(HIDDEN_SIZE), gru_params),
    "rnn": (nn.SimpleCell, rs.cells.RNN(HIDDEN_SIZE), rnn_params),
}


def to_flax(carry):
    """rnnscan's (h, c) is Flax's (c, h), and its (h,) is Flax's h."""
    return carry[::-1] if len(carry) == 2 else carry[0]


def from_flax(carry):
    return carry[::-1] if isinstance(carry, tuple) else (carry,)


@pytest.mark.parametrize(("flax_type", "cell", "to_params"), variants(CELLS, ["gru", "rnn"]))
def test_values_and_gradients_are_those_of_flax(flax_type, cell, to_params, case_of, assert_trees_close):
    case = case_of(cell)
    flax_cell = flax_type(HIDDEN_SIZE, param_dtype=jnp.float64)
    random = np.random.default_rng(0)

    def fill(leaf):
        return jnp.asarray(0.5 * random.normal(size=leaf.shape))

    carry = (fill(np.empty((BATCH, HIDDEN_SIZE))),) * len(cell.carry_names)
    xs = fill(np.empty((TIME, BATCH, INPUT_SIZE)))
    shapes = jax.eval_shape(lambda: flax_cell.init(jax.random.key(0), to_flax(carry), xs[0])["params"])
    weights = jax.tree.map(fill, shapes)

    def run_flax(weights, carry, xs):
        final, ys = jax.lax.scan(lambda c, x: flax_cell.apply({"params": weights}, c, x), to_flax(carry), xs)
        return from_flax(final), ys

    def run_rnnscan(weights, carry, xs):
        return rs.scan(cell, to_params(weights), carry, xs)

    expected = jax.jit(lambda *a: case.gradients(run_flax, *a))(weights, carry, xs)
    actual = jax.jit(lambda *a: case.gradients(run_rnnscan, *a))(weights, carry, xs)
    assert_trees_close(actual, expected, tolerance=1e-9)
