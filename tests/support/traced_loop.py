"""The values that trace() shows, by a loop in Python: cells are called step by step, and a reader keeps their names."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from rnnscan.naming import reading
from rnnscan.paths import current_path, paths_from


@dataclass(eq=False)
class Reader:
    """Keeps named values, and adds perturbations to them."""

    added: dict
    path: str = ""
    step: int = 0
    valid: object = None
    counts: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    depth: int = 0

    def begin(self, step, valid):
        self.step, self.valid, self.counts = step, valid, {}

    def read(self, leaf, label):
        path = self.path + "/".join([*current_path(), label])
        number = self.counts[path] = self.counts.get(path, -1) + 1
        return self.keep(f"{path}[{number}]", leaf)

    def keep(self, path, leaf, masked=True):
        if path in self.added:
            leaf = leaf + self.added[path][self.step]
        shown = _masked(leaf, self.valid) if masked else leaf
        self.values.setdefault(path, {})[self.step] = shown
        return leaf

    def forget(self):
        pass


def _rows(condition, leaf):
    return condition.reshape(condition.shape + (1,) * (leaf.ndim - condition.ndim))


def _masked(leaf, valid):
    return leaf if valid is None else jnp.where(_rows(valid, leaf), leaf, 0)


def loop(
    cell,
    params,
    carry,
    xs,
    added,
    path="",
    *,
    lengths=None,
    reset=None,
    reset_to=None,
    reverse=False,
    truncate=None,
    padding="zero",
):
    """The results of a loop over time, and the values by path, `(T, ...)`; several of one path have numbers."""
    reader, ys, length = Reader(added, path), {}, len(xs)
    order = range(length)[::-1] if reverse else range(length)
    last = None
    for number, t in enumerate(order):
        valid = None if lengths is None else t < lengths
        reader.begin(t, valid)
        if truncate is not None and number and number % truncate == 0:
            carry = jax.tree.map(jax.lax.stop_gradient, carry)
        start, before = carry, carry
        if reset is not None:
            start = jax.tree.map(lambda to, leaf, t=t: jnp.where(_rows(reset[t], leaf), to, leaf), reset_to, carry)
        with reading(reader), paths_from(()):
            new, y = cell(params, start, _masked(xs[t], valid))
        if valid is not None:
            instead = jax.tree.map(jnp.zeros_like, before) if padding == "drop" else before
            new = jax.tree.map(lambda leaf, old, valid=valid: jnp.where(_rows(valid, leaf), leaf, old), new, instead)
            y = _masked(y, valid)
            if padding == "hold":
                last = y if last is None else jnp.where(_rows(valid, y), y, last)
                y = last
        leaves, structure = jax.tree.flatten(new)
        leaves = [reader.keep(f"{path}carry[{i}]", leaf, masked=False) for i, leaf in enumerate(leaves)]
        carry = jax.tree.unflatten(structure, leaves)
        ys[t] = reader.keep(f"{path}y[0]", y, masked=False)
    values = {name: jnp.stack([by_step[t] for t in range(length)]) for name, by_step in reader.values.items()}
    return carry, jnp.stack([ys[t] for t in range(length)]), values


def with_cotangents(function, loss):
    """Values and cotangents of `function(added) -> (carry, ys, values)`, by path."""

    def run(added):
        carry, ys, values = function(added)
        return loss((carry, ys)), values

    def both():
        zeros = jax.tree.map(lambda type: jnp.zeros(type.shape, type.dtype), jax.eval_shape(lambda: function({})[2]))
        return jax.grad(run, has_aux=True)(zeros)

    cotangents, values = jax.jit(both)()
    return values, cotangents


def normal(seed, *shape):
    """Random numbers in float64."""
    return jax.random.normal(jax.random.key(seed), shape, jnp.float64)


def with_noise(params):
    """Parameters whose biases are not zeros."""
    leaves, structure = jax.tree.flatten(params)
    noisy = [leaf.astype(float) + 0.3 * normal(i, *leaf.shape) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, noisy)


def loss_of(results):
    """A loss in which every element of every result has a weight of its own."""
    leaves = jax.tree.leaves(results)
    return sum((normal(50 + i, *leaf.shape) * leaf**2).sum() for i, leaf in enumerate(leaves))
