"""Griffin over packed documents in examples/: resets and windows equal separate documents, and steps equal both."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from example import load, run
from zoo.case import assert_trees_close


griffin = load("griffin_documents")
MODEL = griffin.Griffin(width=6, blocks=2)
# Shorter than a convolution's window, and longer; rows and windows cut some of them.
DOCUMENTS = [b"ab", b"c", b"recurrent", b"efg", b"documents"]
PACKED = griffin.pack(DOCUMENTS, 1)


@pytest.fixture
def params():
    random = np.random.default_rng(0)
    like = jax.eval_shape(MODEL.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, float, 0.5), like)


def slow_mix(params, xs):
    """A block's mixer over one document `(T, D)`: a convolution over all steps, and a loop over the RG-LRU."""
    inner, kernel = xs @ params["in"], params["convolution"]["kernel"]
    convolved = [jnp.convolve(inner[:, one], kernel[::-1, one])[: len(xs)] for one in range(inner.shape[1])]
    inner = jnp.stack(convolved, axis=1) + params["convolution"]["bias"]
    of_gates, order = params["recurrence"], jnp.array([0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11])

    def step(hidden, x):
        by_head = jnp.concatenate([x[:3] @ of_gates["kernel"][0], x[3:] @ of_gates["kernel"][1]])
        # r of both heads, then i of both.
        recurrence_gate, input_gate = jnp.split(jax.nn.sigmoid(by_head[order] + of_gates["bias"]), 2)
        decay = jax.nn.sigmoid(of_gates["decay"]) ** (8 * recurrence_gate)
        hidden = decay * hidden + jnp.sqrt(1 - decay**2) * input_gate * x
        return hidden, hidden

    _, ys = jax.lax.scan(step, jnp.zeros(inner.shape[1]), inner)
    return (ys * jax.nn.gelu(xs @ params["gate"])) @ params["out"]


def slow_model(params, tokens):
    """The logits of one document, with its mark: `(T,)` to `(T, TOKENS)`."""

    def norm(scale, x):
        return scale * x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)

    x = params["embedding"][tokens]
    for block in params["blocks"]:
        x = x + slow_mix(block, norm(block["norm"], x))
        gate, inner = jnp.split(norm(block["mlp_norm"], x) @ block["mlp_in"], 2, axis=-1)
        x = x + (jax.nn.gelu(gate) * inner) @ block["mlp_out"]
    return norm(params["norm"], x) @ params["embedding"].T


def separately(params):
    """The logits of every document alone, one after the other: `(T, 1, TOKENS)`. Padding comes after a document."""
    marked = [[griffin.MARK, *document] for document in DOCUMENTS]
    longest = max(map(len, marked))
    padded = jnp.array([document + [griffin.MARK] * (longest - len(document)) for document in marked])
    logits = jax.vmap(partial(slow_model, params))(padded)
    return jnp.concatenate([row[: len(document)] for row, document in zip(logits, marked, strict=True)])[:, None]


def zeros(tokens):
    return MODEL.initial_carry(tokens[0])


@pytest.mark.usefixtures("x64")
def test_packed_documents_are_separate_and_so_are_their_gradients(params):
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(len(PACKED), 1, griffin.TOKENS)))

    def loss(logits_of):
        return jax.jit(jax.value_and_grad(lambda params: jnp.sum(weights * logits_of(params))))(params)

    actual = loss(lambda params: griffin.run(params, MODEL, zeros(PACKED), PACKED)[1])
    assert_trees_close(actual, loss(separately), tolerance=1e-9)
    without_resets = rs.scan(MODEL, params, zeros(PACKED), PACKED)[1]
    assert jnp.abs(without_resets - jax.jit(separately)(params))[1:].max() > 0.1


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("size", [1, 5])
def test_steps_and_windows_with_the_carry_passed_on_are_separate_documents(size, params):
    carry, logits, step = zeros(PACKED), [], jax.jit(partial(griffin.run, params, MODEL))
    for start in range(0, len(PACKED), size):
        carry, of_window = step(carry, PACKED[start : start + size])
        logits.append(of_window)
    assert_trees_close(jnp.concatenate(logits), jax.jit(separately)(params), tolerance=1e-9)


@pytest.mark.usefixtures("x64")
def test_rows_are_parts_of_the_documents(params):
    rows = griffin.pack(DOCUMENTS, 3)
    text = rows.T.ravel()
    assert bytes(text).split(b"\0")[1:-1] == DOCUMENTS[: bytes(text).count(0) - 1]
    _, logits = griffin.run(params, MODEL, zeros(rows), rows)
    for row in range(3):
        assert_trees_close(logits[:, row], griffin.run(params, MODEL, zeros(rows[:, :1]), rows[:, [row]])[1][:, 0])


@pytest.mark.usefixtures("x64")
def test_the_carry_goes_on_from_one_update_to_the_next(params):
    """The mean loss of an epoch with a rate of 0 is the loss of the whole rows."""
    rows = griffin.pack(DOCUMENTS, 1)
    steps = len(rows) // 4
    count = (len(rows) - 1) // steps * steps
    optimizer = griffin.make_optimizer(0.0)
    carry, state, values = zeros(rows), optimizer.init(params), []
    for start in range(0, count, steps):
        window = rows[start : start + steps + 1]
        params, state, carry, value = griffin.update(params, state, carry, MODEL, optimizer, window)
        values.append(value)
    logits = jax.nn.log_softmax(jax.jit(separately)(params)[:count, 0])
    assert_trees_close(jnp.mean(jnp.stack(values)), -jnp.mean(logits[jnp.arange(count), rows[1 : count + 1, 0]]))


@pytest.mark.usefixtures("x64")
def test_generated_bytes_are_the_likeliest_ones_of_their_document(params):
    # The mark is likely, so that documents end.
    params["embedding"] = params["embedding"].at[griffin.MARK].multiply(3)
    tokens = griffin.generate(params, MODEL, jax.random.key(0), length=12, temperature=1e-6)[:, 0]
    document, slow = [griffin.MARK], jax.jit(partial(slow_model, params))
    for token in tokens.tolist():
        padded = jnp.array(document + [griffin.MARK] * (13 - len(document)))
        assert token == int(slow(padded)[len(document) - 1].argmax())
        document = [griffin.MARK] if token == griffin.MARK else [*document, token]
    assert griffin.MARK in tokens[:-1]


def test_it_learns():
    tokens = griffin.pack([b"the quick brown fox", b"jumps over", b"the lazy dog"] * 12, 4)
    _, losses = griffin.train(griffin.Griffin(16, 1), tokens, epochs=10, steps=24, learning_rate=2e-2)
    assert losses[0] > 2.5
    assert losses[-1] < 1


def test_the_command_writes_documents():
    output = run(griffin, "--epochs", "1", "--width", "8", "--rows", "64", "--length", "9")
    assert re.match(r"\d+ documents: [\d,]+ bytes in 64 rows, [\d,]+ if each were padded\n", output)
    assert re.search(r"\nloss \d\.\d\d to \d\.\d\d in 1 epochs, \d+\.\d s\n--- ", output)
