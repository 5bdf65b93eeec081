"""One changed line in a training script: the same losses, and less memory, counted."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rnnscan import linen
from rnnscan.insight import kept_bytes, temporary_bytes


SYMBOLS, STEPS = 7, 100


def script(rnn, *, cell=nn.LSTMCell, hidden=8, batch=4, time=12, embedding=6, dtype=jnp.float64):
    """A language model on text that repeats itself, and what trains it; `rnn` is the line that changes."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embedded = nn.Embed(SYMBOLS, embedding, param_dtype=dtype)(tokens)
            outputs = rnn(cell(hidden, param_dtype=dtype))(embedded)
            return nn.Dense(SYMBOLS, param_dtype=dtype)(outputs)

    model, optimizer = Model(), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def loss(params, tokens):
        logits = model.apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    @jax.jit
    def update(params, state, tokens):
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def train(seed):
        random = np.random.default_rng(seed)
        params = jax.jit(model.init)(jax.random.key(seed), jnp.zeros((batch, time), int))["params"]
        state, losses = optimizer.init(params), []
        for _ in range(STEPS):
            text = (np.arange(time + 1) ** 2 + random.integers(SYMBOLS, size=(batch, 1))) % SYMBOLS
            params, state, value = update(params, state, jnp.asarray(text))
            losses.append(value)
        return np.array(losses)

    def count_bytes():
        tokens = jax.ShapeDtypeStruct((batch, time + 1), jnp.int32)
        params = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((batch, time), int))["params"])
        state = jax.eval_shape(optimizer.init, params)
        zeros = jnp.zeros(tokens.shape, tokens.dtype)
        compiled = update.lower(params, state, tokens).compile()
        return kept_bytes(lambda params: loss(params, zeros), params), temporary_bytes(compiled)

    return train, count_bytes


@pytest.mark.usefixtures("x64")
@pytest.mark.slow  # tests/nnx has a hundred steps as well.
def test_losses_are_the_same_for_a_hundred_steps():
    expected, losses = (script(rnn)[0](seed=0) for rnn in (nn.RNN, linen.RNN))
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    assert expected[-1] < 0.8 * expected[0]


@pytest.mark.parametrize(
    ("cell", "kept", "temporary"),
    [
        # More is needed than is kept: kernels stand side by side in copies, for one product in place of several.
        (nn.LSTMCell, 0.34, 0.42),
        pytest.param(nn.OptimizedLSTMCell, 0.4, 0.4, marks=pytest.mark.slow),
        pytest.param(nn.GRUCell, 0.4, 0.45, marks=pytest.mark.slow),
    ],
)
def test_less_memory(cell, kept, temporary):
    """Of what the script with Flax's RNN keeps, and of what it needs, at most so much."""
    sizes = {"hidden": 64, "batch": 8, "time": 128, "embedding": 32, "dtype": jnp.float32}
    flax, own = (script(rnn, cell=cell, **sizes)[1]() for rnn in (nn.RNN, linen.RNN))
    assert own[0] < kept * flax[0]
    assert own[1] < temporary * flax[1]


@pytest.mark.parametrize("engine", ["fission", "lax"])
def test_kept_are_inputs_and_carries(engine):
    """A cell of Flax has no names, so it keeps for each step what goes into it, and nothing of what it computes."""
    length, batch, features, hidden = 64, 8, 4, 16
    inputs = jnp.ones((length, batch, features))
    model = linen.RNN(nn.LSTMCell(hidden), time_major=True, return_carry=True, engine=engine)
    variables = jax.eval_shape(model.init, jax.random.key(0), inputs)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(variables))
    rows = length * batch

    def kept(**call):
        return kept_bytes(lambda variables, inputs: model.apply(variables, inputs, **call), variables, inputs) / 4

    carries = kept() - parameters - rows * features
    assert rows * hidden <= carries <= rows * hidden * (2 if engine == "lax" else 1.4)
    # Lengths add which steps are valid, and not the carries of all steps again.
    added = kept(seq_lengths=jnp.arange(batch)) - kept()
    if engine == "lax":
        assert added <= rows * hidden / 4
    else:  # A bool a step and row, and the two carries that are held, before each chunk of 8 steps.
        assert added == rows / 4 + 2 * batch * hidden * length / 8
