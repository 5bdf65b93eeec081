"""The callbacks that move the bars of the forward and of the backward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.varying import vary_as
from rnnscan.inside.progress.bar import Bar, call_after


@dataclass(frozen=True)
class Moves:
    """The bars of a scan.

    Attributes:
        forward: the bar of the forward pass.
        backward: the bar of the backward pass.
        steps: the steps of the scan.
        total: the steps of a whole bar.
        period: the steps between two moves.
    """

    forward: Bar
    backward: Bar
    steps: int
    total: int
    period: int

    def before_window(self, carry: Any, done: Any) -> Any:
        """The carry before a window, after `done` steps. Once its cotangent is known, the bar of the other pass moves.

        That of the scan's initial carry may be of no use, and is not computed; that within the loop over windows is.
        """

        def move(cotangents: Any, done: Any) -> Any:
            return call_after(
                partial(self.backward.move, self.total, self.steps),
                cotangents,
                self.steps - done,
                when=done % self.period == 0,
            )

        return _on_cotangents(move, done, carry)

    def after_window(self, carry: Any, done: Any) -> Any:
        """The carry after a window, after `done` steps. At the end of a period, and of the scan, the bar moves."""
        ends = (done % self.period == 0) | (done == self.steps)
        return call_after(partial(self.forward.move, self.total, self.steps), carry, done, when=ends)


def _on_cotangents(function: Callable[[Any, Any], Any], done: Any, tree: Any) -> Any:
    """The tree, whose cotangents pass through a function `(cotangents, done) -> cotangents`, an identity."""
    leaves, structure = jax.tree.flatten(tree)
    at = [number for number, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    floats = [leaves[number] for number in at]
    # The transposed solution reads it beside the cotangents: under `shard_map` it varies over the same axes.
    passed = _passed(function, vary_as(jnp.asarray(done, jnp.int32), floats), floats) if at else []
    for number, leaf in zip(at, passed, strict=True):
        leaves[number] = leaf
    return jax.tree.unflatten(structure, leaves)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _passed(function: Callable[[Any, Any], Any], done: Any, leaves: list[Any]) -> list[Any]:
    return leaves


@_passed.defjvp
def _(function: Callable[[Any, Any], Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The tangents, by a linear function with a transpose of its own: the solution of a system with the identity.

    `jax.custom_derivatives.linear_call` has no rule for `vmap` (jax 0.10.2 and 0.12.0).
    """
    done, leaves = primals

    def same(values: Any) -> Any:
        return values

    def solve(_: Any, values: Any) -> Any:
        return values

    def solve_transposed(_: Any, cotangents: Any) -> Any:
        return function(cotangents, done)

    return leaves, lax.custom_linear_solve(same, tangents[1], solve, solve_transposed)
