"""Bad input of linen's modules: what must hold, what was got, and what to do."""

import importlib
import re
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import rnnscan as rs
from rnnscan import linen


pytestmark = pytest.mark.bad_input

INPUTS = jnp.ones((2, 5, 3))
LSTM = rs.cells.LSTM(4)


class Growing(nn.RNNCellBase):
    """A cell with a variable that depends on its carry, and without an initial carry."""

    @nn.compact
    def __call__(self, carry, inputs):
        count = self.variable("count", "steps", jnp.zeros, (2, 4))
        count.value = count.value + carry
        return carry, carry

    @property
    def num_feature_axes(self):
        return 1


class WithoutCarry(nn.RNNCellBase):
    """A cell without an initial carry."""

    def __call__(self, carry, inputs):
        return carry + inputs, carry

    @property
    def num_feature_axes(self):
        return 1


class WithTuple:
    """A cell whose parameters have no names."""

    def init(self, key, input_size):
        return (jnp.ones((input_size, 4)),)

    def initial_carry(self, x):
        return jnp.zeros((*x.shape[:-1], 4))

    def __call__(self, params, carry, x):
        return carry, x @ params[0]


def init(model, inputs=INPUTS, **call):
    return lambda: jax.eval_shape(lambda: model().init(jax.random.key(0), inputs, **call))


def rnn(cell=LSTM, **options):
    return lambda: linen.RNN(cell, **options)


def growing(**options):
    call = {"initial_carry": jnp.ones((2, 4))}
    return init(lambda: linen.RNN(Growing(), **options), **call)


CASES = {
    # name: (call, exception, parts of the message)
    "a number as a cell": (
        rnn(3),
        TypeError,
        ["a cell must be", "got int, without 'init'"],
    ),
    "the class of a cell": (rnn(rs.cells.GRU), TypeError, ["got the class GRU", "GRU(...)"]),
    "a function": (rnn(lambda params, carry, x: (carry, x)), TypeError, ["got function", "'initial_carry'"]),
    "a net": (rnn(rs.layer(LSTM)), TypeError, ["got the net Layer(", "whole sequences", "Pass its cell"]),
    "a module that is no cell": (rnn(nn.Dense(4)), TypeError, ["got Dense of flax.linen, without", "RNNCellBase"]),
    "a module of nnx": (
        rnn(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0))),
        TypeError,
        ["got LSTMCell of flax.nnx, without", "A cell of flax.nnx, ", "goes into rnnscan.nnx.RNN as it is"],
    ),
    "a class of nnx": (
        rnn(nnx.LSTMCell),
        TypeError,
        ["got the class LSTMCell of flax.nnx", "LSTMCell(...), to rnnscan.nnx.RNN."],
    ),
    "a class of linen": (
        rnn(nn.LSTMCell),
        TypeError,
        ["got the class LSTMCell of flax.linen", "LSTMCell(...), to rnnscan.linen.RNN."],
    ),
    "a module in Cell": (
        lambda: linen.Cell(nn.LSTMCell(4)),
        TypeError,
        ["got LSTMCell of flax.linen, without", "goes into rnnscan.linen.RNN as it is"],
    ),
    "a net in Cell": (lambda: linen.Cell(rs.layer(LSTM)), TypeError, ["a cell must be", "the net Layer("]),
    "no initial carry": (
        init(lambda: linen.RNN(Growing())),
        TypeError,
        ["without `initialize_carry`", "got Growing", "Pass `initial_carry`"],
    ),
    "parameters without names": (
        init(rnn(WithTuple())),
        TypeError,
        ["must return a dictionary", "got tuple", "WithTuple", "a name for each array"],
    ),
    "inputs without time": (init(rnn(), jnp.ones(3)), ValueError, ["a time axis and 1 feature axes", "float32[3]"]),
    "inputs that are no array": (init(rnn(), [1, 2]), ValueError, ["`inputs`", "got list"]),
    "lengths of another shape": (
        init(rnn(), seq_lengths=jnp.array([5])),
        ValueError,
        ["`seq_lengths` must be integers (2,)", "int32[1]"],
    ),
    "time-major inputs with lengths": (
        init(rnn(), jnp.ones((5, 2, 3)), seq_lengths=jnp.array([5, 4])),
        ValueError,
        ["integers (5,)", "got int32[2], one for each step", "inputs are (batch, T, ...). Pass time_major=True"],
    ),
    "batch-major inputs with lengths": (
        init(rnn(time_major=True), seq_lengths=jnp.array([5, 4])),
        ValueError,
        ["integers (5,)", "got int32[2], one for each step", "inputs are (T, batch, ...). Pass time_major=False"],
    ),
    "time-major inputs with a carry": (
        init(rnn(nn.GRUCell(4)), jnp.ones((5, 2, 3)), initial_carry=jnp.ones((2, 4))),
        ValueError,
        ["a row for each of the 5 rows", "got 2 rows, one for each step", "Pass time_major=True for (T, batch, ...)."],
    ),
    "a mask as lengths": (
        init(rnn(), seq_lengths=jnp.ones((2, 5), bool)),
        ValueError,
        ["must be integers (2,)", "got the mask bool[2,5]", "mask.sum over the axis of time"],
    ),
    "lengths of floats": (init(rnn(), seq_lengths=jnp.ones(2)), ValueError, ["integers", "float32[2]", ".astype(int)"]),
    "reset with time first": (
        init(rnn(), reset=jnp.zeros((5, 2), bool)),
        ValueError,
        ["`reset` must be booleans (2, 5)", "got bool[5,2]"],
    ),
    "reset with time last": (
        init(rnn(time_major=True), jnp.ones((5, 2, 3)), reset=jnp.zeros((2, 5), bool)),
        ValueError,
        ["`reset` must be booleans (5, 2)", "got bool[2,5]"],
    ),
    "reset of numbers": (
        init(rnn(), reset=jnp.zeros((2, 5))),
        ValueError,
        ["`reset`", "got float32[2,5]", "write reset != 0"],
    ),
    "a carry of other rows, with lengths": (
        init(rnn(return_carry=True), initial_carry=(jnp.ones((3, 4)),) * 2, seq_lengths=jnp.array([5, 3])),
        ValueError,
        ["`seq_lengths`", "the batch, (2,)", "`carry[0]`", "float32[3,4]", "`initial_carry`"],
    ),
    "a carry of another size, with resets": (
        init(rnn(nn.GRUCell(4)), initial_carry=jnp.ones(5), reset=jnp.zeros((2, 5), bool), reset_to=jnp.ones(5)),
        ValueError,
        ["`reset`", "the batch, (2,)", "`carry`", "float32[5]"],
    ),
    "a carry to reset to, of another shape": (
        init(rnn(nn.GRUCell(4)), reset=jnp.zeros((2, 5), bool), reset_to=jnp.ones((3, 4))),
        ValueError,
        ["`reset_to` must be like the initial carry, float32[2,4]; got float32[3,4].", "the batch, (2,)"],
    ),
    "a carry to reset to, of another dtype": (
        init(rnn(nn.GRUCell(4)), reset=jnp.zeros((2, 5), bool), reset_to=jnp.ones((2, 4), jnp.bfloat16)),
        ValueError,
        ["`reset_to` must be like the initial carry", "got bfloat16[2,4]."],
    ),
    "a carry to reset to, without resets": (
        init(rnn(), reset_to=jnp.ones(4)),
        ValueError,
        ["`reset_to` is the carry that `reset` goes back to; got no `reset`. Pass both."],
    ),
    "a carry to start from, unlike the cell's own, with resets": (
        init(rnn(nn.LSTMCell(4)), initial_carry=jnp.ones((2, 4)), reset=jnp.zeros((2, 5), bool)),
        ValueError,
        ["`reset` goes back to the cell's own carry", "the initial one, float32[2,4]", "Pass `reset_to`"],
    ),
    "resets of a cell without a carry of its own": (
        init(rnn(WithoutCarry()), initial_carry=jnp.ones((2, 3)), reset=jnp.zeros((2, 5), bool)),
        TypeError,
        ["the cell's own carry; got WithoutCarry, which has no `initialize_carry`. Pass `reset_to`."],
    ),
    "a name that the cell does not have": (
        init(rnn(memory=rs.Memory(recompute=("gate",)))),
        ValueError,
        ["`recompute`", "'gate'", "Did you mean 'gates'?"],
    ),
    "a name where the cell has none": (
        init(rnn(nn.LSTMCell(4), memory=rs.Memory(recompute=("gates",)))),
        ValueError,
        ["`recompute`", "'gates'", "the cell names none"],
    ),
    "a memory choice that is none": (init(rnn(memory="all")), TypeError, ["must be an rnnscan.Memory", "'all'"]),
    "an unknown engine": (init(rnn(engine="fast")), ValueError, ["`engine`", "'fast'"]),
    "truncate of zero": (init(rnn(truncate=0)), ValueError, ["`truncate`", "at least 1", "got 0"]),
    "a carry of another type than the cell's": (
        init(rnn(nn.SimpleCell(4, dtype=jnp.bfloat16))),
        TypeError,
        ["float32[2,4] and came out as bfloat16[2,4]"],
    ),
    "a broadcast variable that depends on the carry": (
        growing(variable_broadcast=["params", "count"]),
        ValueError,
        ["the same at every step", "`variable_carry` or `variable_axes`"],
    ),
    "a carried variable that is made in the loop": (
        growing(variable_carry="count"),
        ValueError,
        ["exist before the first step", "'count'", "`variable_broadcast`"],
    ),
}


@pytest.mark.parametrize(("call", "exception", "parts"), CASES.values(), ids=CASES)
def test_bad_input(call, exception, parts):
    with pytest.raises(exception) as caught:
        call()
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert re.search(r"got|went in as", message), message
    assert "\n" not in message


def test_a_missing_flax_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("rnnscan.linen")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match="the extra 'flax' must be installed; got no module 'flax'"):
        importlib.import_module("rnnscan.linen")
