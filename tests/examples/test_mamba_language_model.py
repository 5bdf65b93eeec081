"""The Mamba language model in examples/: training and decoding agree, and equal the equations in a slow loop."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rnnscan as rs
from drawn import normal
from example import load, run
from zoo.case import assert_trees_close


mamba = load("mamba_language_model")
MODEL, TIME, ROWS = mamba.Mamba(width=6, blocks=2, state_size=3), 9, 2


@pytest.fixture
def drawn():
    """Random parameters, a carry amid a text, and tokens."""
    random = np.random.default_rng(0)
    like = jax.eval_shape(MODEL.init, jax.random.key(0)), jax.eval_shape(MODEL.initial_carry, jnp.zeros(ROWS, int))
    params, carry = jax.tree.map(lambda leaf: normal(random, leaf.shape, float, 0.5), like)
    return params, carry, jnp.asarray(random.integers(mamba.TOKENS, size=(TIME, ROWS)))


def slow_block(params, xs):
    """A block over one row `(T, D)` from zeros: a convolution over all steps, and a loop over the state space."""
    inner, gate = jnp.split(xs @ params["in"], 2, axis=-1)
    kernel = params["convolution"]["kernel"]
    convolved = [jnp.convolve(inner[:, one], kernel[::-1, one])[: len(xs)] for one in range(inner.shape[1])]
    inner = jax.nn.silu(jnp.stack(convolved, axis=1) + params["convolution"]["bias"])
    of_space, states = params["state_space"], MODEL.state_size
    rank, rate = of_space["step_kernel"].shape[0], -jnp.exp(of_space["log_decay"])

    def step(state, x):
        narrow, write, read = jnp.split(x @ of_space["kernel"], [rank, rank + states])
        dt = jnp.log1p(jnp.exp(narrow @ of_space["step_kernel"] + of_space["step_bias"]))[:, None]
        state = jnp.exp(dt * rate) * state + (jnp.exp(dt * rate) - 1) / rate * x[:, None] * write
        return state, state @ read + of_space["skip"] * x

    _, ys = jax.lax.scan(step, jnp.zeros((inner.shape[1], states)), inner)
    return (ys * jax.nn.silu(gate)) @ params["out"]


def slow_model(params, tokens):
    """The logits of one row of tokens `(T,)`."""

    def norm(scale, x):
        return scale * x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)

    x = params["embedding"][tokens]
    for block in params["blocks"]:
        x = x + slow_block(block, norm(block["norm"], x))
    return norm(params["norm"], x) @ params["embedding"].T


@pytest.mark.usefixtures("x64")
def test_training_is_decoding(drawn):
    params, carry, tokens = drawn
    expected = jax.jit(partial(rs.scan, MODEL))(params, carry, tokens)
    step, logits = jax.jit(MODEL), []
    for token in tokens:
        carry, of_token = step(params, carry, token)
        logits.append(of_token)
    assert_trees_close((carry, jnp.stack(logits)), expected, tolerance=1e-9)


@pytest.mark.usefixtures("x64")
def test_the_loss_and_its_gradient_are_those_of_the_equations(drawn):
    params, _, tokens = drawn

    def slow_loss(params):
        logits = jax.vmap(partial(slow_model, params), in_axes=1, out_axes=1)(tokens[:-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean()

    expected = jax.jit(jax.value_and_grad(slow_loss))(params)
    actual = jax.jit(jax.value_and_grad(lambda params: mamba.loss(params, MODEL, tokens)))(params)
    assert_trees_close(actual, expected, tolerance=1e-9)


@pytest.mark.usefixtures("x64")
def test_generated_tokens_are_the_likeliest_ones_after_all_before(drawn):
    params, _, tokens = drawn
    generated = mamba.generate(params, MODEL, jax.random.key(0), tokens, length=4, temperature=1e-6)
    text = jnp.concatenate([tokens, generated])
    logits = jax.vmap(partial(slow_model, params), in_axes=1, out_axes=1)(text[:-1])
    assert generated.shape == (4, ROWS)
    assert jnp.array_equal(logits[TIME - 1 :].argmax(-1), generated)


def test_it_learns():
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 8, np.uint8)
    params, losses = mamba.train(mamba.Mamba(16, 1, 4), text, updates=40, rows=8, steps=24, learning_rate=2e-2)
    assert losses[0] > 4
    assert np.mean(losses[-5:]) < 1.5
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_the_command_writes_text():
    output = run(mamba, "--updates", "2", "--width", "8", "--blocks", "1", "--length", "5")
    assert re.match(r"loss \d\.\d\d to \d\.\d\d in 2 updates, \d+\.\d s\n    def ", output)
