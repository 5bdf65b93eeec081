"""The rule of memory for decoders, counted: what is as long as the sequence is kept as the choice says."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import attention, cells
from rnnscan.insight import kept_bytes, temporary_bytes
from tiers import variants


FLOAT = 4
LENGTH, BATCH, STEPS, ENCODER, ATTENTION, HIDDEN, FEATURES = 24, 4, 10, 12, 8, 16, 6
RECOMPUTE = rs.Memory(recompute=("attention",))
ADDITIVE = {
    "additive": attention.Additive(ENCODER, ATTENTION),
    "recurrent": attention.RecurrentAdditive(ENCODER, ATTENTION),
    "coverage": attention.Coverage(ENCODER, ATTENTION),
}
PRODUCTS = {
    "dot": (attention.Dot(HIDDEN), 1),
    "multi-head": (attention.MultiHead(ENCODER, ATTENTION, heads=2), 2),
}


def shapes(mechanism, length=LENGTH, batch=BATCH, steps=STEPS):
    decoder = attention.decoder(cells.LSTM(HIDDEN), mechanism)
    params = jax.eval_shape(lambda: decoder.init(jax.random.key(0), FEATURES))
    encoder_outputs = jax.ShapeDtypeStruct((steps, batch, mechanism.encoder_size), jnp.float32)
    xs = jax.ShapeDtypeStruct((length, batch, FEATURES), jnp.float32)
    return decoder, params, encoder_outputs, xs


def forward(decoder, memory, engine, batch):
    lengths = jnp.arange(batch)

    def outputs(params, encoder_outputs, xs):
        cell = decoder.over(params, encoder_outputs, encoder_lengths=lengths)
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory, engine=engine)

    return outputs


def bytes_kept(mechanism, memory, engine="auto", **sizes):
    decoder, *arguments = shapes(mechanism, **sizes)
    return kept_bytes(forward(decoder, memory, engine, sizes.get("batch", BATCH)), *arguments)


@pytest.mark.parametrize("name", ADDITIVE)
def test_recomputing_attention_drops_what_is_as_large_as_the_encoder_at_every_step(name):
    """With the lax engine the keys and the bias, from which it is made again, are kept in its place, once."""
    named = FLOAT * LENGTH * BATCH * STEPS * ATTENTION
    kept, dropped = (bytes_kept(ADDITIVE[name], memory, "lax") for memory in (rs.Memory(), RECOMPUTE))
    assert kept - dropped == named - FLOAT * (BATCH * STEPS * ATTENTION + ATTENTION)
    choices = [replace(memory, chunk=LENGTH // 2) for memory in (rs.Memory(), RECOMPUTE)]
    kept, dropped = (bytes_kept(ADDITIVE[name], memory, "fission") for memory in choices)
    coverage = 0
    if name == "coverage":
        # It follows from what is kept while the weights do, and is kept itself, and not before the first step and at
        # the starts of two chunks, where they do not.
        coverage = FLOAT * (LENGTH - 3) * BATCH * STEPS
    assert kept - dropped == named - coverage


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("engine", ["fission", "lax"])
def test_products_keep_a_score_for_each_step_of_the_encoder_and_head_or_none(name, engine):
    mechanism, heads = PRODUCTS[name]
    kept, dropped = (bytes_kept(mechanism, memory, engine) for memory in (rs.Memory(), RECOMPUTE))
    assert kept - dropped == FLOAT * LENGTH * BATCH * heads * STEPS


@pytest.mark.parametrize("name", variants(["additive", "recurrent", "dot", "multi-head"], ["recurrent", "multi-head"]))
def test_what_a_longer_sequence_adds_does_not_depend_on_the_length_of_the_encoder(name):
    """So encoder outputs, keys and values are kept once, and not at every step."""
    mechanism = ADDITIVE[name] if name in ADDITIVE else PRODUCTS[name][0]
    memory = replace(RECOMPUTE, chunk=16)
    added = {
        steps: bytes_kept(mechanism, memory, length=64, steps=steps)
        - bytes_kept(mechanism, memory, length=32, steps=steps)
        for steps in (10, 40)
    }
    assert added[10] == added[40]
    gates, inputs, states = 4 * HIDDEN, FEATURES, HIDDEN + mechanism.context_size
    starts = 2 * HIDDEN * BATCH * FLOAT
    assert added[10] <= 32 * BATCH * FLOAT * (gates + inputs + states) + starts


def test_the_compiled_program_needs_less_memory_too():
    decoder, *arguments = shapes(ADDITIVE["additive"], length=64, batch=8, steps=64)

    def temporary(memory, engine="auto"):
        loss = lambda *arguments: (forward(decoder, memory, engine, 8)(*arguments)[1][0] ** 2).sum()  # noqa: E731
        return temporary_bytes(jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arguments).compile())

    named = FLOAT * 64 * 8 * 64 * ATTENTION
    assert temporary(rs.Memory()) - temporary(RECOMPUTE) >= 0.6 * named
