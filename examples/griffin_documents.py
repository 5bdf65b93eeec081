"""Griffin's recurrent block over packed documents, with resets, in plain JAX and optax.

    pip install ".[train]"
    python examples/griffin_documents.py

The documents, docstrings of Python, have different lengths. They follow one another in a few long rows without padding,
and training goes over the rows in windows. Two things keep each document what it would be alone:

    resets      the carry goes back to zeros before the first byte of a document. The carry has the RG-LRU's state, and
                also the last inputs of the convolution, so neither reads the document before.
    carries     a document that a window cuts goes on in the next window, from the carry.
"""

import builtins
import inspect
import math
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer

import rnnscan as rs
from rnnscan import cells


MARK = 0  # The byte before each document, and so the byte after the one before.
TOKENS = 128  # ASCII
WINDOW = 4  # inputs that a convolution reads


@dataclass(frozen=True)
class Griffin:
    """Recurrent blocks of Griffin (De et al. 2024, figure 2) between an embedding and its transpose."""

    width: int = 48
    blocks: int = 2

    @property
    def recurrence(self):
        """The RG-LRU of a block."""
        return cells.RGLRU(self.width, heads=2)

    def init(self, key):
        """Make parameters: a plain dict."""
        embedding_key, *block_keys = jax.random.split(key, 1 + self.blocks)
        return {
            "embedding": jax.random.normal(embedding_key, (TOKENS, self.width)) / self.width**0.5,
            "blocks": [self.init_block(block_key) for block_key in block_keys],
            "norm": jnp.ones(self.width),
        }

    def init_block(self, key):
        """Make the parameters of a block."""
        keys, size = jax.random.split(key, 7), self.width
        dense = jax.nn.initializers.lecun_normal()
        return {
            "norm": jnp.ones(size),
            "gate": dense(keys[0], (size, size)),
            "in": dense(keys[1], (size, size)),
            "convolution": {"kernel": dense(keys[2], (WINDOW, size)), "bias": jnp.zeros(size)},
            "recurrence": self.recurrence.init(keys[3], size),
            "out": dense(keys[4], (size, size)),
            "mlp_norm": jnp.ones(size),
            "mlp_in": dense(keys[5], (size, 4 * size)),
            "mlp_out": dense(keys[6], (2 * size, size)),
        }

    def initial_carry(self, token):
        """The carry before a document, for tokens `(N,)`: zeros. `rs.scan` resets to it."""
        x = jnp.zeros((*token.shape, self.width))
        return (((x,) * (WINDOW - 1), self.recurrence.initial_carry(x)),) * self.blocks

    def __call__(self, params, carry, token):
        """One step: `token` is `(N,)`, and the logits of the next token are `(N, TOKENS)`."""
        x, carries = params["embedding"][token], []
        for of_block, block_carry in zip(params["blocks"], carry, strict=True):
            block_carry, y = self.mix(of_block, block_carry, rms_norm(of_block["norm"], x))
            carries.append(block_carry)
            x = x + y
            x = x + gated_mlp(of_block, rms_norm(of_block["mlp_norm"], x))
        return tuple(carries), rms_norm(params["norm"], x) @ params["embedding"].T

    def mix(self, params, carry, x):
        """One step of a block's mixer over time: a convolution and an RG-LRU, gated."""
        window, state = carry
        window, y = convolve(params["convolution"], window, x @ params["in"])
        state, y = self.recurrence(params["recurrence"], state, y)
        return (window, state), (y * jax.nn.gelu(x @ params["gate"])) @ params["out"]


def gated_mlp(params, x):
    """The block's mixer over features."""
    gate, inner = jnp.split(x @ params["mlp_in"], 2, axis=-1)
    return (jax.nn.gelu(gate) * inner) @ params["mlp_out"]


def convolve(params, window, x):
    """One step of a causal depthwise convolution: `window` is the tuple of the last inputs, the oldest first."""
    seen = (*window, x)
    y = params["bias"] + sum(kernel * past for kernel, past in zip(params["kernel"], seen, strict=True))
    return seen[1:], y


def rms_norm(scale, x):
    """Divide by the root of the mean square."""
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def run(params, model, carry, tokens):
    """Run over tokens `(T, N)`, a window or one step: the carry and the logits. A document begins at each mark."""
    return rs.scan(model, params, carry, tokens, reset=tokens == MARK)


def docstrings():
    """The documents: short texts that every Python has."""
    objects = [*vars(builtins).values(), *vars(str).values(), *vars(math).values()]
    texts = {inspect.getdoc(value) or "" for value in objects}
    return [text.encode() for text in sorted(texts) if text.isascii() and 0 < len(text) < 500]


def pack(documents, rows):
    """Documents one after the other in rows of equal length, time-major `(T, rows)`, each after a mark."""
    tokens = np.frombuffer(b"".join(bytes([MARK]) + document for document in documents), np.uint8)
    length = len(tokens) // rows
    return tokens[: rows * length].reshape(rows, length).T


def loss(params, model, carry, tokens):
    """The mean cross entropy of the next byte over a window `(T + 1, N)`, and the carry after it."""
    carry, logits = run(params, model, carry, tokens[:-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean(), carry


@cache  # One object for each rate, so that `update` compiles once.
def make_optimizer(learning_rate):
    """Adam with clipped gradients."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))


@partial(jax.jit, static_argnames=("model", "optimizer"))
def update(params, state, carry, model, optimizer, tokens):
    """Learn from one window: the new parameters, state of the optimizer and carry, and the loss."""
    (value, carry), gradients = jax.value_and_grad(loss, has_aux=True)(params, model, carry, tokens)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, carry, value


def train(model, tokens, *, epochs, steps=64, learning_rate=4e-3, seed=0):
    """Train on packed rows `(T, N)` in windows; return the parameters and the mean loss of each epoch."""
    params, optimizer = jax.jit(model.init)(jax.random.key(seed)), make_optimizer(learning_rate)
    state, means = optimizer.init(params), []
    for _ in range(epochs):
        carry, losses = model.initial_carry(tokens[0]), []
        for start in range(0, len(tokens) - steps, steps):
            window = tokens[start : start + steps + 1]
            params, state, carry, value = update(params, state, carry, model, optimizer, window)
            losses.append(value)
        means.append(float(np.mean(losses)))
    return params, means


@partial(jax.jit, static_argnames=("model", "length"))
def generate(params, model, key, *, length, temperature=0.7):
    """Write documents, one after the other: a mark that the model draws ends one and resets the carry."""

    def step(state, key):
        carry, token = state
        carry, logits = run(params, model, carry, token[None])
        token = jax.random.categorical(key, logits[0] / temperature).astype(token.dtype)
        return (carry, token), token

    token = jnp.full(1, MARK, jnp.uint8)
    return jax.lax.scan(step, (model.initial_carry(token), token), jax.random.split(key, length))[1]


def main(
    epochs: Annotated[int, typer.Option(help="Passes over the documents.", min=1)] = 15,
    rows: Annotated[int, typer.Option(help="Rows that the documents are packed in.", min=1)] = 16,
    width: Annotated[int, typer.Option(help="Width of the model, an even number.", min=2)] = 48,
    length: Annotated[int, typer.Option(help="Bytes to generate.", min=1)] = 300,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Train on docstrings of Python, and write others."""
    documents, model = docstrings(), Griffin(width)
    tokens = pack(documents, rows)
    padded = len(documents) * (1 + max(map(len, documents)))
    print(f"{len(documents)} documents: {tokens.size:,} bytes in {rows} rows, {padded:,} if each were padded")
    began = perf_counter()
    params, losses = train(model, tokens, epochs=epochs, seed=seed)
    print(f"loss {losses[0]:.2f} to {losses[-1]:.2f} in {epochs} epochs, {perf_counter() - began:.1f} s")
    text = bytes(np.asarray(generate(params, model, jax.random.key(seed), length=length)[:, 0]))
    for document in text.split(bytes([MARK])):
        print(f"--- {document.decode()}")


if __name__ == "__main__":
    typer.run(main)
