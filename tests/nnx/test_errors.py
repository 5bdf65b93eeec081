"""What cannot be honored is an error that says so."""

import re
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import rnnscan as rs
from nnx_pairs import BATCH, FEATURES, TIME, make_cell, random_inputs
from rnnscan.nnx import RNN, Cell, Streaming


def rnn(**options):
    return RNN(make_cell("SimpleCell"), **options)


def resets(*shape, dtype=bool):
    return jnp.zeros(shape, dtype)


class NoRows(nnx.RNNCellBase):
    num_feature_axes = 1

    def __call__(self, carry, inputs):
        return carry + 1, inputs

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.zeros(())


class NoCarry(nnx.RNNCellBase):
    num_feature_axes = 1

    def __call__(self, carry, inputs):
        return carry + inputs, carry


class Maker(nnx.RNNCellBase):
    """A cell that makes a variable in its step."""

    num_feature_axes = 1

    def __call__(self, carry, inputs):
        self.last = nnx.Variable(inputs)
        return carry, inputs

    def initialize_carry(self, input_shape, rngs=None):
        return ()


class Forgetter(Maker):
    """A cell that deletes one."""

    def __init__(self):
        self.first = nnx.Variable(jnp.ones(()))

    def __call__(self, carry, inputs):
        del self.first
        return carry, inputs


def attention_cell():
    decoder = rs.attention.decoder(rs.cells.GRU(4), rs.attention.Additive(encoder_size=6, attention_size=5))
    return decoder.over(decoder.init(jax.random.key(0), input_size=3), jnp.ones((7, 2, 6)))


CASES = {
    "a cell of rnnscan": (
        TypeError,
        r"nnx\.RNN: a cell of rnnscan needs `in_features` and `rngs`.*; got no `in_features` and no `rngs`\. Write",
        lambda: RNN(rs.cells.LSTM(4)),
    ),
    "a cell of rnnscan without keys": (
        TypeError,
        r"nnx\.RNN: a cell of rnnscan needs .*; got in_features=3 and no `rngs`\. Write RNN\(cell, in_features=inputs",
        lambda: RNN(rs.cells.LSTM(4), in_features=3),
    ),
    "a cell of rnnscan with a seed": (
        TypeError,
        r"nnx\.RNN: a cell of rnnscan needs .*; got in_features=3 and 7\. Write RNN\(cell, .*rngs=nnx\.Rngs\(0\)\)",
        lambda: RNN(rs.cells.LSTM(4), in_features=3, rngs=7),
    ),
    "a size by its place": (
        TypeError,
        r"nnx\.RNN: all options must be passed by name; got 3 after the cell\. Write RNN\(cell, in_features=inputs\.sh",
        lambda: RNN(rs.cells.LSTM(4), 3),
    ),
    "a net": (TypeError, r"nnx\.RNN: a cell must be .*; got the net Layer", lambda: RNN(rs.layer(rs.cells.LSTM(4)))),
    "a number": (TypeError, r"nnx\.RNN: a cell must be .*; got int, without", lambda: RNN(4, in_features=3)),
    "a cell of rnnscan without a size": (
        TypeError,
        r"nnx\.RNN: a cell of rnnscan needs .*; got no `in_features` and an nnx\.Rngs\. Write RNN\(cell, in_feat",
        lambda: RNN(rs.cells.LSTM(4), rngs=nnx.Rngs(0)),
    ),
    "the size for a cell of flax": (
        TypeError,
        r"nnx\.RNN: `in_features` is for a cell of rnnscan; got in_features=3 and the module SimpleCell, which",
        lambda: rnn(in_features=3),
    ),
    "a cell of flax.linen": (
        TypeError,
        r"got LSTMCell of flax\.linen, without .* A cell of flax\.linen, .* goes into rnnscan\.linen\.RNN as it is\.",
        lambda: RNN(linen.LSTMCell(4)),
    ),
    "a cell of flax.linen with a size": (
        TypeError,
        r"got LSTMCell of flax\.linen, without .* A cell of flax\.linen, .* goes into rnnscan\.linen\.RNN as it is\.",
        lambda: RNN(linen.LSTMCell(4), in_features=3),
    ),
    "a class of flax.linen": (
        TypeError,
        r"got the class LSTMCell of flax\.linen\. Pass an object of it, LSTMCell\(\.\.\.\), to rnnscan\.linen\.RNN\.",
        lambda: RNN(linen.LSTMCell, in_features=3),
    ),
    "a class": (
        TypeError,
        r"got the class LSTMCell of flax\.nnx\. Pass an object of it, LSTMCell\(\.\.\.\), to rnnscan\.nnx\.RNN\.",
        lambda: RNN(nnx.LSTMCell, in_features=3),
    ),
    "no cell": (
        TypeError,
        r"nnx\.RNN: the cell must be .*; got Linear.* Derive your own cells from nnx\.RNNCellBase\.",
        lambda: RNN(nnx.Linear(3, 4, rngs=nnx.Rngs(0))),
    ),
    "an engine": (ValueError, r"`engine` must be one of .*; got 'loop'", lambda: rnn(engine="loop")),
    "a memory choice": (TypeError, r"`memory` must be an rnnscan\.Memory", lambda: rnn(memory="all")),
    "truncate": (ValueError, r"`truncate` must be a number of steps of at least 1", lambda: rnn(truncate=0)),
    "an axis of variables": (
        ValueError,
        r"nnx\.RNN: `state_axes` must have nnx\.Carry, None or the number of an axis for each filter; got 'carry' for ",
        lambda: rnn(state_axes={nnx.BatchStat: "carry", ...: nnx.Carry}),
    ),
    "rngs": (ValueError, r"Expected rngs to be", lambda: rnn(rngs=7)),
    "a name": (
        ValueError,
        r"every name in `recompute` must be one .*; got 'gates', and the cell names none",
        lambda: rnn(memory=rs.Memory(recompute=("gates",)))(random_inputs()),
    ),
    "inputs of one step": (
        ValueError,
        r"nnx\.RNN: `inputs` must have a time axis and 1 feature axes; got float32\[3\]",
        lambda: rnn()(jnp.ones(3)),
    ),
    "lengths of another batch": (
        ValueError,
        r"nnx\.RNN: `seq_lengths` must be integers \(3,\).*; got int32\[2\]\.",
        lambda: rnn()(random_inputs(), seq_lengths=jnp.array([1, 2])),
    ),
    "lengths that are no integers": (
        ValueError,
        r"`seq_lengths` must be integers \(3,\).*; got float32\[3\]\. .*seq_lengths\.astype",
        lambda: rnn()(random_inputs(), seq_lengths=jnp.ones(3)),
    ),
    "resets of another layout": (
        ValueError,
        r"nnx\.RNN: `reset` must be booleans \(3, 6\).*; got bool\[6,3\]\. Lay it out like `inputs`",
        lambda: rnn()(random_inputs(), reset=resets(TIME, BATCH)),
    ),
    "resets that are no booleans": (
        ValueError,
        r"`reset` must be booleans \(3, 6\).*; got int32\[3,6\]\. .* write reset != 0",
        lambda: rnn()(random_inputs(), reset=resets(BATCH, TIME, dtype=int)),
    ),
    "resets of a carry without rows": (
        ValueError,
        r"nnx\.RNN: with `reset` every leaf of the carry must begin with the batch, \(3,\); got float32\[\] at `carry`",
        lambda: RNN(NoRows())(random_inputs(), reset=resets(BATCH, TIME)),
    ),
    "lengths of a carry without rows": (
        ValueError,
        r"nnx\.RNN: with `seq_lengths` every leaf of the carry must begin with the batch",
        lambda: RNN(NoRows(), return_carry=True)(random_inputs(), seq_lengths=jnp.array([1, 2, 3])),
    ),
    "a carry to reset to, of another shape": (
        ValueError,
        r"nnx\.RNN: `reset_to` must be like the initial carry, float32\[3,4\]; got float32\[1,4\]\. ",
        lambda: rnn()(random_inputs(), reset=resets(BATCH, TIME), reset_to=jnp.ones((1, 4))),
    ),
    "a carry to reset to, without resets": (
        ValueError,
        r"nnx\.RNN: `reset_to` .*; got no `reset`",
        lambda: rnn()(random_inputs(), reset_to=jnp.ones((BATCH, 4))),
    ),
    "resets of a cell without a carry of its own": (
        TypeError,
        r"nnx\.RNN: `reset` .* the cell's own carry; got NoCarry, which has no `initialize_carry`\. Pass `reset_to`",
        lambda: RNN(NoCarry())(random_inputs(), initial_carry=jnp.ones((BATCH, 3)), reset=resets(BATCH, TIME)),
    ),
    "a key for a cell of Flax": (
        TypeError,
        r"nnx\.RNN: `key` is for the random choices of a rnnscan\.nnx\.Cell; got one for SimpleCell",
        lambda: rnn()(random_inputs(), key=jax.random.key(0)),
    ),
    "a step that makes variables": (
        ValueError,
        r"nnx\.RNN: a step must not create or delete variables of the cell; got one that creates `cell\.last`\.",
        lambda: RNN(Maker())(random_inputs()),
    ),
    "a step that deletes variables": (
        ValueError,
        r"got one that deletes `cell\.first`\.",
        lambda: RNN(Forgetter())(random_inputs()),
    ),
    "a carry of another type": (
        TypeError,
        r"scan: a cell must return a carry of the types that it was given",
        lambda: RNN(nnx.SimpleCell(3, 4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))(random_inputs()),
    ),
    "Cell: a module": (
        TypeError,
        r"nnx\.Cell: a cell must be .* with `init` and `initial_carry`; got SimpleCell of flax\.nnx, without 'init', "
        r"'initial_carry'\. A cell of flax\.nnx, .* goes into rnnscan\.nnx\.RNN as it is\.",
        lambda: Cell(make_cell("SimpleCell"), 3, rngs=nnx.Rngs(0)),
    ),
    "Cell: a cell that holds arrays": (
        TypeError,
        r"Cell: the cell must not hold arrays; got AttentionCell, a pytree with arrays\. Build it in",
        lambda: Cell(attention_cell(), 3, rngs=nnx.Rngs(0)),
    ),
    "Cell: a cell around one that holds arrays": (
        TypeError,
        r"Cell: the cell must not hold arrays; got AttentionCell, a pytree with arrays\. Build it in",
        lambda: Cell(rs.dropout(rs.stack(attention_cell(), rs.cells.GRU(4)), 0.1), 3, rngs=nnx.Rngs(0)),
    ),
    "Cell: a size": (
        ValueError,
        r"Cell: `in_features` must be an int of at least 1; got 0\.",
        lambda: Cell(rs.cells.LSTM(4), 0, rngs=nnx.Rngs(0)),
    ),
    "Cell: an initializer without keys": (
        ValueError,
        r"Cell: `carry_init` must be given with `rngs`; got rngs=None\.",
        lambda: Cell(rs.cells.LSTM(4), 3, rngs=nnx.Rngs(0)).initialize_carry((2, 3), carry_init=nnx.initializers.ones),
    ),
    "Streaming: a cell": (
        TypeError,
        r"nnx\.Streaming: `rnn` must be a rnnscan\.nnx\.RNN; got SimpleCell\. Write Streaming\(RNN\(cell\),",
        lambda: Streaming(make_cell("SimpleCell"), (BATCH, FEATURES)),
    ),
    "Streaming: in reverse": (
        ValueError,
        r"nnx\.Streaming: the RNN must have reverse=False; got reverse=True\.",
        lambda: Streaming(rnn(reverse=True), (BATCH, FEATURES)),
    ),
    "Streaming: another batch": (
        ValueError,
        r"nnx\.Streaming: inputs must be \(3, 3\), one step, or \(3, T, 3\), a window; got float32\[4,3\]\.",
        lambda: Streaming(rnn(), (BATCH, FEATURES))(jnp.ones((4, FEATURES))),
    ),
    "Streaming: a window of another batch": (
        ValueError,
        r"inputs must be \(3, 3\), one step, or \(T, 3, 3\), a window; got float32\[3,4,3\]",
        lambda: Streaming(rnn(time_major=True), (BATCH, FEATURES))(jnp.ones((BATCH, 4, FEATURES))),
    ),
    "Streaming: too many axes": (
        ValueError,
        r"inputs must be .*; got float32\[1,3,6,3\]",
        lambda: Streaming(rnn(), (BATCH, FEATURES))(random_inputs()[None]),
    ),
    "Streaming: the length of one step": (
        ValueError,
        r"nnx\.Streaming: `seq_lengths` must come with a window; got one step, float32\[3,3\]\.",
        lambda: Streaming(rnn(), (BATCH, FEATURES))(random_inputs()[:, 0], seq_lengths=jnp.ones(3, int)),
    ),
}
WRONG_TYPES = {
    "a memory choice",
    "Cell: a module",
    "truncate",
    "an engine",
    "rngs",
    "Streaming: a cell",
    "lengths that are no integers",
    "resets that are no booleans",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.bad_input] * (name in WRONG_TYPES)) for name in CASES]
)
def test_errors(name):
    error, message, call = CASES[name]
    with pytest.raises(error, match=message):
        call()


def test_a_missing_flax_names_the_extra(monkeypatch):
    for module in [module for module in sys.modules if module.startswith("rnnscan.nnx")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(
        ImportError, match=re.escape("rnnscan.nnx: the extra 'flax' must be installed; got no module 'flax'")
    ):
        import rnnscan.nnx  # noqa: F401
