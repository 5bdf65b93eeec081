"""What rnnscan.nnx.RNN keeps for the backward pass, counted, and training with it beside flax.nnx.RNN."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import rnnscan as rs
import rnnscan.nnx
from rnnscan.insight import kept_bytes
from tiers import variants


TIME, BATCH, FEATURES, UNITS = 256, 8, 16, 32


def kept_per_step(model, **call):
    """Floats that stay for one step of one row, parameters and the like being little beside them."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    zeros = jnp.zeros((BATCH, UNITS))
    call |= {"initial_carry": (zeros, zeros)} if type(model) is nnx.RNN else {}

    def loss(params, inputs):
        # Rebuilt within: of what is outside, Flax's own RNN may change nothing.
        carry, _ = nnx.merge(graphdef, params, jax.tree.map(lambda leaf: leaf, rest))(inputs, **call)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(carry))

    once, twice = (
        kept_bytes(loss, params, jax.ShapeDtypeStruct((length, BATCH, FEATURES), jnp.float32))
        for length in (TIME, 2 * TIME)
    )
    return (twice - once) / (4 * TIME * BATCH)


def lstm(kind, **options):
    return kind(nnx.LSTMCell(FEATURES, UNITS, rngs=nnx.Rngs(0)), time_major=True, return_carry=True, **options)


@pytest.mark.parametrize("lengths", variants([False, True], [True]))
def test_an_lstm_of_flax_keeps_its_inputs_and_carries(lengths):
    """D + H of D + 12 H: the state c follows from h, and is not kept."""
    call = {"seq_lengths": jnp.full(BATCH, TIME - 3)} if lengths else {}
    kept = kept_per_step(lstm(rnnscan.nnx.RNN), **call)
    assert FEATURES + UNITS <= kept <= 1.1 * (FEATURES + UNITS)
    assert kept_per_step(lstm(rnnscan.nnx.RNN, engine="lax"), **call) <= 1.1 * (FEATURES + 2 * UNITS)
    flax = kept_per_step(lstm(nnx.RNN), **call)
    assert flax >= FEATURES + 12 * UNITS
    assert kept_per_step(lstm(rnnscan.nnx.RNN, memory=None)) == pytest.approx(flax, rel=0.01)


def test_segments():
    kept = [kept_per_step(lstm(rnnscan.nnx.RNN, memory=rs.Memory(segment=segment))) for segment in (8, 32)]
    assert kept[1] < kept[0] < FEATURES + UNITS
    assert kept[1] - FEATURES == pytest.approx(2 * UNITS / 32, rel=0.1)


class Named(nnx.RNNCellBase):
    """A cell of a user's own that names what is expensive."""

    num_feature_axes = 1

    def __init__(self):
        self.dense = nnx.Linear(FEATURES + UNITS, UNITS, rngs=nnx.Rngs(0))

    def __call__(self, carry, inputs):
        product = rs.name(self.dense(jnp.concatenate([inputs, carry], axis=-1)), "product")
        carry = jnp.tanh(product) * nnx.sigmoid(product)
        return carry, carry

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.zeros((*input_shape[:-1], UNITS))


def named(**options):
    return rnnscan.nnx.RNN(Named(), time_major=True, return_carry=True, **options)


def test_names_in_a_cell_of_flax():
    kept, less = (kept_per_step(named(memory=rs.Memory(recompute=recompute))) for recompute in ((), ("product",)))
    assert kept - less == pytest.approx(UNITS, rel=0.1)
    with pytest.raises(ValueError, match=r"got 'produkt', and the cell names 'product'\. Did you mean 'product'\?"):
        named(memory=rs.Memory(recompute=("produkt",)))(jnp.ones((TIME, BATCH, FEATURES)))


def test_names_in_a_cell_of_rnnscan():
    def kept(recompute):
        cell = rnnscan.nnx.Cell(rs.cells.LSTM(UNITS), FEATURES, rngs=nnx.Rngs(0))
        memory = rs.Memory(recompute=recompute)
        return kept_per_step(rnnscan.nnx.RNN(cell, time_major=True, return_carry=True, memory=memory))

    assert kept(()) - kept(("gates",)) == pytest.approx(4 * UNITS, rel=0.1)


def test_an_inner_rnn_keeps_its_names_to_itself():
    """A cell that itself runs an RNN over something: the outer choice speaks of the outer names only."""

    class Outer(nnx.RNNCellBase):
        num_feature_axes = 2

        def __init__(self):
            self.inner = rnnscan.nnx.RNN(Named(), return_carry=True)

        def __call__(self, carry, inputs):
            return self.inner(inputs, initial_carry=carry)

        def initialize_carry(self, input_shape, rngs=None):
            return jnp.zeros((*input_shape[:-2], UNITS))

    inputs = jnp.ones((BATCH, 3, 4, FEATURES))
    assert rnnscan.nnx.RNN(Outer())(inputs).shape == (BATCH, 3, 4, UNITS)
    with pytest.raises(ValueError, match="got 'product', and the cell names none"):
        rnnscan.nnx.RNN(Outer(), memory=rs.Memory(recompute=("product",)))(inputs)


@pytest.mark.parametrize("name", variants(["SimpleCell", "GRUCell", "OptimizedLSTMCell"], []))
@pytest.mark.usefixtures("x64")
def test_training_is_the_same_for_100_steps(name):
    """One word changed in a training script, `rnnscan.nnx.RNN` for `nnx.RNN`: the same losses, to rounding."""
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(4, 10, 2)))
    target = jnp.cumsum(inputs[..., :1] * inputs[..., 1:], axis=1)

    class Model(nnx.Module):
        def __init__(self, kind):
            rngs = nnx.Rngs(0)
            wide = {"dtype": jnp.float64, "param_dtype": jnp.float64, "rngs": rngs}
            self.rnn = kind(getattr(nnx, name)(2, 8, **wide))
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.head = nnx.Linear(8, 1, **wide)

        def __call__(self, inputs):
            return self.head(self.dropout(self.rnn(inputs)))

    def losses(kind):
        model = Model(kind)
        optimizer = nnx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)), wrt=nnx.Param)

        @nnx.jit
        def train_step(model, optimizer):
            value, gradients = nnx.value_and_grad(lambda model: ((model(inputs) - target) ** 2).mean())(model)
            optimizer.update(model, gradients)
            return value

        return np.array([train_step(model, optimizer) for _ in range(100)])

    expected, actual = losses(nnx.RNN), losses(rnnscan.nnx.RNN)
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    assert actual[-1] < 0.5 * actual[0]
