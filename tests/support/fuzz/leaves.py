"""Kinds of leaves that a carry, xs or params may have, each in a step that reads it beside a hidden state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero


STEPS = 4
PLACES = ("carry", "params", "xs")
_TWO = ("carry", "params")

# What runs a step: `(cell, params, carry, xs) -> (carry, ys)`.
Scan = Callable[..., tuple[Any, Any]]
# `(scan, mapped, shared) -> (carry, ys)`; both lists hold one vector of two floats.
Run = Callable[[Scan, Any, Any], Any]


@dataclass(frozen=True)
class Leaf:
    """A kind of leaf.

    Attributes:
        make: (mapped, shared) -> the leaf at first.
        read: what of it the hidden state reads; broadcasts against it.
        next: (leaf, hidden) -> the leaf after a step.
        places: where it can be.
    """

    make: Callable[[Any, Any], Any]
    read: Callable[[Any], Any] = lambda leaf: leaf * 0.1
    next: Callable[[Any, Any], Any] = lambda leaf, hidden: leaf
    places: tuple[str, ...] = PLACES

    def run(self, place: str) -> Run:
        """A scan of a step with the leaf in one place."""

        def run(scan: Scan, mapped: Any, shared: Any) -> Any:
            def cell(params: Any, carry: Any, x: Any) -> Any:
                leaf = {"params": params, "carry": carry, "xs": x}[place]["leaf"]
                hidden = jnp.tanh(params["factor"] * carry["hidden"] + x["signal"] + self.read(leaf))
                new, after = {"hidden": hidden}, self.next(leaf, hidden)
                if place == "carry":
                    new["leaf"] = after
                return new, (hidden * 2, after)

            trees: dict[str, Any] = {
                "params": {"factor": shared[0]},
                "carry": {"hidden": mapped},
                "xs": {"signal": jnp.linspace(0.1, 1.0, STEPS)[:, None] * shared},
            }
            leaf = self.make(mapped, shared)
            trees[place]["leaf"] = _stacked(leaf) if place == "xs" else leaf
            return scan(cell, trees["params"], trees["carry"], trees["xs"])

        return run


def _stacked(leaf: Any) -> Any:
    """The same leaf at every step."""
    if isinstance(leaf, np.ndarray | np.generic):
        return np.stack([leaf] * STEPS)
    return jnp.stack([jnp.asarray(leaf)] * STEPS)


def _uniform(key: Any) -> Any:
    return jax.random.uniform(key)


@jax.custom_jvp
def without_tangent(time: Any) -> Any:
    """The identity, which must not be differentiated."""
    return time


def _refuse(primals: Any, tangents: Any) -> Any:
    if not isinstance(tangents[0], SymbolicZero):
        raise TypeError("the time has a tangent")
    return primals[0], tangents[0]


without_tangent.defjvp(_refuse, symbolic_zeros=True)


def _whole(mapped: Any) -> Any:
    """An integer that depends on what is mapped."""
    return (10 * mapped).astype(jnp.int32).sum()


LEAVES: dict[str, Leaf] = {
    "Python integer": Leaf(lambda m, s: 3, next=lambda leaf, _: leaf + 1, places=_TWO),
    "Python float": Leaf(lambda m, s: 0.5, next=lambda leaf, _: leaf * 0.9, places=_TWO),
    "Python bool": Leaf(lambda m, s: True, next=lambda leaf, _: jnp.logical_not(leaf), places=_TWO),
    "Python complex": Leaf(lambda m, s: 0.5j, lambda leaf: jnp.imag(leaf), lambda leaf, _: leaf * 1j, ("carry",)),
    "Python float from the state": Leaf(lambda m, s: 0.5, next=lambda leaf, h: h.sum(), places=("carry",)),
    "NumPy integer": Leaf(lambda m, s: np.int32(3), next=lambda leaf, _: leaf + 1),
    "NumPy floats": Leaf(lambda m, s: np.float32([0.5, 1.0]), next=lambda leaf, h: leaf * h),
    "integer": Leaf(lambda m, s: jnp.int32(3), next=lambda leaf, _: leaf // 2 + 1),
    "integers": Leaf(lambda m, s: jnp.arange(2), next=lambda leaf, h: leaf + (h > 0)),
    "small integers": Leaf(lambda m, s: jnp.arange(2, dtype=jnp.uint8), next=lambda leaf, _: leaf * 3),
    "mapped integer": Leaf(lambda m, s: _whole(m), next=lambda leaf, _: leaf // 2 + 3),
    "truth values": Leaf(lambda m, s: jnp.asarray([True, False]), next=lambda leaf, h: leaf ^ (h > 0.3)),
    "mapped truth value": Leaf(lambda m, s: m.sum() > 1, next=lambda leaf, h: ~leaf),
    "key": Leaf(lambda m, s: jax.random.key(3), _uniform, lambda leaf, _: jax.random.fold_in(leaf, 1)),
    "mapped key": Leaf(lambda m, s: jax.random.key(_whole(m)), _uniform, lambda leaf, _: jax.random.split(leaf)[0]),
    "raw key": Leaf(lambda m, s: jax.random.PRNGKey(3), _uniform, lambda leaf, _: jax.random.split(leaf)[0]),
    "dead": Leaf(lambda m, s: s * 2, lambda leaf: 0.0, lambda leaf, h: h * 2),
    "dead, of the mapped": Leaf(lambda m, s: m * 2, lambda leaf: 0.0, lambda leaf, h: jnp.sin(leaf) + h),
    "dead number": Leaf(lambda m, s: s[0], lambda leaf: 0.0, lambda leaf, h: leaf + jnp.sum(h**2)),
    "clock": Leaf(
        lambda m, s: jnp.float32(0.2), lambda leaf: jnp.cos(without_tangent(leaf)), lambda leaf, _: leaf + 0.1
    ),
    "loop of a clock": Leaf(
        lambda m, s: jnp.float32(0.2),
        lambda leaf: lax.while_loop(lambda t: t < 3.0, lambda t: t + 1.0, leaf),
        lambda leaf, _: leaf + 0.1,
    ),
    "stopped": Leaf(lambda m, s: m, next=lambda leaf, h: lax.stop_gradient(h) * leaf),
    "without elements": Leaf(lambda m, s: jnp.zeros((0,)), lambda leaf: leaf.sum(), lambda leaf, h: leaf * h[:1]),
    "without elements, of the mapped": Leaf(lambda m, s: m[:0], lambda leaf: leaf.sum(), lambda leaf, h: h[2:]),
    "new carry that is a literal": Leaf(lambda m, s: m[0], next=lambda leaf, _: jnp.float32(1.0)),
    "new carry that is a number": Leaf(lambda m, s: s[0], next=lambda leaf, _: 0.5),
    "literal vector": Leaf(lambda m, s: m, next=lambda leaf, _: jnp.ones(2)),
    "number": Leaf(lambda m, s: m[0], next=lambda leaf, h: jnp.sin(leaf) + h[0]),
    "number of the shared": Leaf(lambda m, s: s[1], next=lambda leaf, h: leaf * h[0]),
    "passed on": Leaf(lambda m, s: m),
    "complex": Leaf(
        lambda m, s: lax.complex(m, s), lambda leaf: jnp.real(leaf) * 0.1, lambda leaf, h: leaf * (0.5 + 0.5j) + h
    ),
    "half": Leaf(
        lambda m, s: m.astype(jnp.bfloat16),
        lambda leaf: leaf.astype(jnp.float32) * 0.1,
        lambda leaf, _: leaf * jnp.bfloat16(0.5),
    ),
    "None": Leaf(lambda m, s: None, lambda leaf: 0.0, places=_TWO),
    "twice": Leaf(lambda m, s: (m, m), lambda leaf: leaf[0] - 0.5 * leaf[1], lambda leaf, h: (leaf[1], h), _TWO),
}


def runs_of_leaves() -> Iterator[tuple[str, Run]]:
    """A scan for each kind of leaf in each place, by name."""
    for name, leaf in LEAVES.items():
        for place in leaf.places:
            yield f"{name} in {place}", leaf.run(place)
