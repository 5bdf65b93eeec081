"""A Mamba language model that trains over whole sequences and decodes from its carry, in plain JAX and optax.

    pip install ".[train]"
    python examples/mamba_language_model.py

The model is one function, `Mamba.__call__`: a step `(params, carry, token) -> (carry, logits)`. It runs in two ways,
with the same logits:

    training    `rs.scan` runs the step over all tokens. Its state spaces are linear recurrences, and the rest of a step
                needs no earlier step, so the engine runs it for many tokens at once.
    decoding    the step itself, one token at a time. Its time and memory do not grow with the text.

The carry of a block is the last inputs of its convolution and the states of its state space.
"""

import random
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer

import rnnscan as rs
from rnnscan import cells


TOKENS = 256  # bytes
WINDOW = 4  # inputs that a convolution reads


@dataclass(frozen=True)
class Mamba:
    """Blocks of Mamba (Gu and Dao 2023, figure 3) between an embedding and its transpose."""

    width: int = 48
    blocks: int = 2
    state_size: int = 8

    @property
    def state_space(self):
        """The selective state space of a block, twice as wide as the model."""
        return cells.S6(2 * self.width, state_size=self.state_size)

    def init(self, key):
        """Make parameters."""
        embedding_key, *block_keys = jax.random.split(key, 1 + self.blocks)
        return {
            "embedding": jax.random.normal(embedding_key, (TOKENS, self.width)) / self.width**0.5,
            "blocks": [self.init_block(block_key) for block_key in block_keys],
            "norm": jnp.ones(self.width),
        }

    def init_block(self, key):
        """Make the parameters of a block."""
        keys, inner = jax.random.split(key, 4), 2 * self.width
        dense = jax.nn.initializers.lecun_normal()
        return {
            "norm": jnp.ones(self.width),
            "in": dense(keys[0], (self.width, 2 * inner)),
            "convolution": {"kernel": dense(keys[1], (WINDOW, inner)), "bias": jnp.zeros(inner)},
            "state_space": self.state_space.init(keys[2], inner),
            "out": dense(keys[3], (inner, self.width)),
        }

    def initial_carry(self, token):
        """The carry before the first token, for tokens `(N,)`: zeros."""
        x = jnp.zeros((*token.shape, 2 * self.width))
        return (((x,) * (WINDOW - 1), self.state_space.initial_carry(x)),) * self.blocks

    def __call__(self, params, carry, token):
        """One step: `token` is `(N,)`, and the logits of the next token are `(N, TOKENS)`."""
        x, carries = params["embedding"][token], []
        for of_block, block_carry in zip(params["blocks"], carry, strict=True):
            block_carry, y = self.block(of_block, block_carry, rms_norm(of_block["norm"], x))
            carries.append(block_carry)
            x = x + y
        return tuple(carries), rms_norm(params["norm"], x) @ params["embedding"].T

    def block(self, params, carry, x):
        """One step of a block: a convolution and a state space, gated."""
        window, states = carry
        inner, gate = jnp.split(x @ params["in"], 2, axis=-1)
        window, inner = convolve(params["convolution"], window, inner)
        states, y = self.state_space(params["state_space"], states, jax.nn.silu(inner))
        return (window, states), (y * jax.nn.silu(gate)) @ params["out"]


def convolve(params, window, x):
    """One step of a causal depthwise convolution: `window` is the tuple of the last inputs, the oldest first."""
    seen = (*window, x)
    y = params["bias"] + sum(kernel * past for kernel, past in zip(params["kernel"], seen, strict=True))
    return seen[1:], y


def rms_norm(scale, x):
    """Divide by the root of the mean square."""
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def loss(params, model, tokens):
    """The mean cross entropy of the next token, for tokens `(T + 1, N)`."""
    inputs, targets = tokens[:-1], tokens[1:]
    _, logits = rs.scan(model, params, model.initial_carry(inputs[0]), inputs)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


@cache  # One object for each rate, so that `update` compiles once.
def make_optimizer(learning_rate):
    """Adam with clipped gradients."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))


@partial(jax.jit, static_argnames=("model", "optimizer"))
def update(params, state, model, optimizer, tokens):
    """One step of the training: the new parameters and state of the optimizer, and the loss."""
    value, gradients = jax.value_and_grad(loss)(params, model, tokens)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value


@partial(jax.jit, static_argnames=("model", "length"))
def generate(params, model, key, prompt, *, length, temperature=0.7):
    """Continue a prompt `(T, N)`: one scan reads it, and then each step reads the token that the one before drew."""
    carry, logits = rs.scan(model, params, model.initial_carry(prompt[0]), prompt)

    def step(state, key):
        carry, logits = state
        token = jax.random.categorical(key, logits / temperature)
        return model(params, carry, token), token

    _, tokens = jax.lax.scan(step, (carry, logits[-1]), jax.random.split(key, length))
    return tokens


def train(model, text, *, updates, rows=16, steps=64, learning_rate=3e-3, seed=0):
    """Train on random pieces of a text of bytes; return the parameters and the losses."""
    random_starts, optimizer = np.random.default_rng(seed), make_optimizer(learning_rate)
    params = jax.jit(model.init)(jax.random.key(seed))
    state, losses = optimizer.init(params), []
    for _ in range(updates):
        starts = random_starts.integers(len(text) - steps, size=rows)
        tokens = text[starts + np.arange(steps + 1)[:, None]]  # time, batch
        params, state, value = update(params, state, model, optimizer, tokens)
        losses.append(float(value))
    return params, losses


def main(
    updates: Annotated[int, typer.Option(help="Steps of the training.", min=1)] = 200,
    width: Annotated[int, typer.Option(help="Width of the model.", min=1)] = 48,
    blocks: Annotated[int, typer.Option(help="Number of blocks.", min=1)] = 2,
    length: Annotated[int, typer.Option(help="Bytes to generate.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Train on a module of the standard library, and write more of it."""
    text, model = np.frombuffer(Path(random.__file__).read_bytes(), np.uint8), Mamba(width, blocks)
    began = perf_counter()
    params, losses = train(model, text, updates=updates, seed=seed)
    print(f"loss {losses[0]:.2f} to {np.mean(losses[-10:]):.2f} in {updates} updates, {perf_counter() - began:.1f} s")
    prompt = np.frombuffer(b"    def ", np.uint8)[:, None]
    tokens = generate(params, model, jax.random.key(seed), prompt, length=length)
    print(bytes([*prompt[:, 0], *np.asarray(tokens[:, 0])]).decode(errors="replace"))


if __name__ == "__main__":
    typer.run(main)
