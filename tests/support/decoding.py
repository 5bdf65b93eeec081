"""What the tests of attention share: decoders, random arguments, runs, and the equations as slow loops."""

from functools import partial
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from drawn import normal
from rnnscan import attention
from rnnscan.cells import LSTM
from zoo.case import Case


FEATURES, HIDDEN, LENGTH, ENCODER_LENGTH = 3, 4, 3, 4
ENCODER_LENGTHS, DECODER_LENGTHS = (4, 2, 0, 3), (3, 2, 3, 0)
BATCH = len(ENCODER_LENGTHS)

MECHANISMS = {
    "additive": attention.Additive(5, 6),
    "additive, no bias": attention.Additive(5, 6, use_bias=False),
    "recurrent": attention.RecurrentAdditive(5, 6),
    "coverage": attention.Coverage(5, 6),
    "coverage, no bias": attention.Coverage(5, 6, use_bias=False),
    "dot": attention.Dot(HIDDEN),
    "dot, scaled": attention.Dot(HIDDEN, scale=True),
    "dot, projected": attention.Dot(5, project_query=True),
    "dot, projected and scaled, no bias": attention.Dot(5, project_query=True, scale=True, use_bias=False),
    "multi-head": attention.MultiHead(5, 6, heads=2),
    "multi-head, no bias": attention.MultiHead(5, 6, heads=3, use_bias=False),
}
DECODERS = {name: attention.decoder(LSTM(HIDDEN), mechanism) for name, mechanism in MECHANISMS.items()}
KINDS = {name: DECODERS[name] for name in ("additive", "recurrent", "coverage", "dot, projected", "multi-head")}


def arguments(decoder, *, length=LENGTH, batch=BATCH, seed=0):
    """Random parameters, encoder outputs, carry and inputs of the widest dtype that is on; none is zero."""
    random = np.random.default_rng(seed)
    fill = lambda leaf: normal(random, leaf.shape, jnp.result_type(float), 0.7)  # noqa: E731
    params = jax.eval_shape(lambda: decoder.init(jax.random.key(0), FEATURES))
    encoder_outputs = jnp.zeros((ENCODER_LENGTH, batch, decoder.attention.encoder_size))
    xs = jnp.zeros((length, batch, FEATURES))
    initial = lambda params, outputs, x: decoder.over(params, outputs).initial_carry(x)  # noqa: E731
    carry = jax.eval_shape(initial, params, encoder_outputs, xs[0])
    return jax.tree.map(fill, (params, encoder_outputs, carry, xs))


def run(decoder, params, encoder_outputs, carry, xs, *, encoder_lengths=ENCODER_LENGTHS, keys=None, **options):
    """The decoder over the whole sequence."""
    lengths = None if encoder_lengths is None else jnp.asarray(encoder_lengths)
    cell = decoder.over(params, encoder_outputs, encoder_lengths=lengths, keys=keys)
    return rs.scan(cell, params, carry, xs, **options)


def gradients(function, *arguments):
    """What a function returns, and the gradients of a loss that weighs all of it, for all arguments; compiled."""

    def loss_and_outputs(*arguments):
        outputs = function(*arguments)
        return Case.loss(outputs), outputs

    wanted = tuple(range(len(arguments)))
    gradients, outputs = jax.jit(jax.grad(loss_and_outputs, argnums=wanted, has_aux=True))(*arguments)
    return outputs, gradients


def gradients_of(decoder, arguments, **options):
    """Outputs and gradients of `run`."""
    return gradients(partial(run, decoder, **options), *arguments)


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def lstm(params, hidden, state, x):
    """One step of one row."""
    gates = x @ params["kernel"] + hidden @ params["recurrent_kernel"] + params["bias"]
    z_i, z_f, z_g, z_o = (gates[block * HIDDEN : (block + 1) * HIDDEN] for block in range(4))
    state = sigmoid(z_f) * state + sigmoid(z_i) * jnp.tanh(z_g)
    return sigmoid(z_o) * jnp.tanh(state), state


def softmax(scores):
    exponentials = [jnp.exp(score) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def bias(params, name="bias"):
    return params.get(name, 0.0)


def attend(mechanism, params, encoder, hidden, context, coverage):
    """One step of one row over the valid steps of its encoder: the new context, and a list of weights for each head."""
    if isinstance(mechanism, attention.MultiHead):
        return attend_with_heads(mechanism, params, encoder, hidden)
    scores = []
    for step, enc in enumerate(encoder):
        if isinstance(mechanism, attention.Dot):
            query = hidden @ params["query_kernel"] + bias(params) if mechanism.project_query else hidden
            score = sum(enc[i] * query[i] for i in range(len(enc)))
            scores.append(score / sqrt(len(enc)) if mechanism.scale else score)
            continue
        seen = enc @ params["key_kernel"] + hidden @ params["query_kernel"] + bias(params)
        if isinstance(mechanism, attention.RecurrentAdditive):
            seen += context @ params["context_kernel"]
        if isinstance(mechanism, attention.Coverage):
            seen += coverage[step] * (enc @ params["coverage_kernel"] + bias(params, "coverage_bias"))
        scores.append(params["score_kernel"] @ jnp.tanh(seen))
    weights = softmax(scores)
    return sum(weight * enc for weight, enc in zip(weights, encoder, strict=True)), [weights]


def attend_with_heads(mechanism, params, encoder, hidden):
    size = mechanism.attention_size // mechanism.heads
    attended, weights_of_heads = [], []
    for head in range(mechanism.heads):
        part = slice(head * size, (head + 1) * size)
        query = (hidden @ params["query_kernel"] + bias(params))[part]
        scores = [(enc @ params["key_kernel"][:, part]) @ query / sqrt(size) for enc in encoder]
        weights = softmax(scores)
        values = [enc @ params["value_kernel"][:, part] for enc in encoder]
        attended.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        weights_of_heads.append(weights)
    return jnp.concatenate(attended) @ params["output_kernel"] + bias(params, "output_bias"), weights_of_heads


def loop_of_row(mechanism, params, encoder, carry, xs, steps):
    """The equations for one row, with the valid outputs of its encoder; nothing happens after `steps` steps."""
    (hidden, state), context, *coverage = carry
    outputs, weights_of_steps = [], []
    for x in xs[:steps]:
        hidden, state = lstm(params["cell"], hidden, state, jnp.concatenate([x, context]))
        if len(encoder):
            context, heads = attend(mechanism, params["attention"], encoder, hidden, context, *(coverage or [None]))
        else:
            context, heads = jnp.zeros_like(context), [[]] * getattr(mechanism, "heads", 1)
        weights = jnp.asarray([[*weights, *[0.0] * (ENCODER_LENGTH - len(encoder))] for weights in heads])
        weights = weights if isinstance(mechanism, attention.MultiHead) else weights[0]
        coverage = [part + weights for part in coverage]
        outputs.append(jnp.concatenate([hidden, context]))
        weights_of_steps.append(weights)
    heads = (mechanism.heads,) if isinstance(mechanism, attention.MultiHead) else ()
    padding = len(xs) - steps
    outputs += [jnp.zeros(HIDDEN + mechanism.encoder_size)] * padding
    weights_of_steps += [jnp.zeros((*heads, ENCODER_LENGTH))] * padding
    return ((hidden, state), context, *coverage), (jnp.stack(outputs), jnp.stack(weights_of_steps))


def loop(decoder, params, encoder_outputs, carry, xs):
    """The equations, row by row, with the encoder and the decoder of each row as long as `*_LENGTHS` say."""
    rows = []
    for row, (encoder_steps, steps) in enumerate(zip(ENCODER_LENGTHS, DECODER_LENGTHS, strict=True)):
        of_row = jax.tree.map(lambda leaf, row=row: leaf[row], carry)
        encoder = encoder_outputs[:encoder_steps, row]
        rows.append(loop_of_row(decoder.attention, params, encoder, of_row, xs[:, row], steps))
    carry = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(carry for carry, _ in rows))
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *(outputs for _, outputs in rows))
