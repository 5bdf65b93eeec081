"""Cells whose loops are elementwise, and random arguments for them."""

import jax
import jax.numpy as jnp
import numpy as np


UNITS = 4


def weights(seed=0, *, gain=1.0, inputs=3):
    """Random weights of three gates."""
    random = np.random.default_rng(seed)
    shapes = {"kernel": (inputs, 3 * UNITS), "recurrent": (3, UNITS), "bias": (3 * UNITS,)}
    drawn = {key: jnp.asarray(random.normal(size=shape)) for key, shape in shapes.items()}
    return drawn | {"recurrent": gain * drawn["recurrent"]}


def one_leaf(params, carry, x):
    """A GRU whose recurrent matrices are diagonal."""
    (hidden,) = carry
    update, reset, new = jnp.split(x @ params["kernel"] + params["bias"], 3, axis=-1)
    a, b, c = params["recurrent"]
    update = jax.nn.sigmoid(update + a * hidden)
    new = jnp.tanh(new + c * jax.nn.sigmoid(reset + b * hidden) * hidden)
    hidden = update * hidden + (1 - update) * new
    return (hidden,), hidden


def two_leaves(params, carry, x):
    """An LSTM whose recurrent matrices are diagonal. Its gates are in a row."""
    hidden, state = carry
    recurrent = jnp.tile(hidden, 3) * params["recurrent"].reshape(-1)
    forget, out, new = jnp.split(x @ params["kernel"] + params["bias"] + recurrent, 3, axis=-1)
    state = jax.nn.sigmoid(forget) * state + jax.nn.sigmoid(-forget) * jnp.tanh(new)
    hidden = jax.nn.sigmoid(out + state) * jnp.tanh(state)
    return (hidden, state), hidden


def three_kinds(params, carry, x):
    """A nonlinear loop that reads a linear one, a linear pair, a delay and a counter."""
    slow, hidden, pair, last, count = carry
    decay, turn, new = jnp.split(x @ params["kernel"] + params["bias"], 3, axis=-1)
    a, b, c = params["recurrent"]
    slow = jax.nn.sigmoid(decay) * slow + last
    hidden = jnp.maximum(jnp.tanh(a * hidden + slow) + 0.3 * jax.nn.relu(b * hidden), -0.5)
    sine, cosine = jnp.sin(turn), jnp.cos(turn)
    pair = {"re": 0.9 * (cosine * pair["re"] - sine * pair["im"]), "im": sine * pair["re"] + c * 0.1 * pair["im"] + new}
    even = jnp.where(count % 2 == 0, hidden, pair["im"])
    return (slow, hidden, pair, jnp.tanh(new), count + 1), even


CELLS = {"one leaf": (one_leaf, 1), "two leaves": (two_leaves, 2), "three kinds": (three_kinds, 5)}


def carry_of(name, rows, seed=1):
    random = np.random.default_rng(seed)

    def leaf():
        return jnp.asarray(0.5 * random.normal(size=(rows, UNITS)))

    if name == "three kinds":
        return leaf(), leaf(), {"re": leaf(), "im": leaf()}, leaf(), jnp.asarray(3)
    return tuple(leaf() for _ in range(CELLS[name][1]))


def arguments_of(name, *, steps=21, rows=3, gain=1.0, seed=0):
    """Params, carry and xs."""
    xs = jnp.asarray(np.random.default_rng(seed + 2).normal(size=(steps, rows, 3)))
    return weights(seed, gain=gain), carry_of(name, rows, seed + 1), xs
