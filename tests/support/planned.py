"""Calls that tests plan the memory of: shapes in place of arrays."""

import jax
import jax.numpy as jnp

import rnnscan as rs
from rnnscan import cells


def shapes(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


# Few operations, a product with a name, and fourteen choices: it is planned in a second. The derivative of tanh would
# follow from the new carry, and recomputing would cost nothing.
SMALL, SMALL_LENGTH = cells.RNN(8, activation="softsign"), 16
# What the gradient needs that recomputes its product, and not the one that keeps it.
SMALL_BUDGET = 9_500


def arguments(cell, length=SMALL_LENGTH, batch=4, size=8):
    x = jax.ShapeDtypeStruct((batch, size), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), size))
    return params, jax.eval_shape(cell.initial_carry, x), jax.ShapeDtypeStruct((length, *x.shape), x.dtype)


RANDOM_CELLS = (
    cells.LSTM,
    cells.GRU,
    cells.RNN,
    cells.MGU,
    cells.IndRNN,
    cells.LayerNormLSTM,
    cells.LayerNormGRU,
    cells.SRU,
    cells.QRNN,
    cells.MinGRU,
    cells.MinLSTM,
    cells.RGLRU,
    cells.LRU,
    cells.SLSTM,
    lambda size: rs.stack(cells.GRU(size), cells.LSTM(size)),
    lambda size: cells.LSTM(size, peepholes=True, proj_size=max(1, size // 2)),
)
