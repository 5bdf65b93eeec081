"""The carry to start from, drawn from a stream of keys only where it is random.

Flax's cells ask for a key to make zeros, and a module that owns a stream of keys for that changes with each call. Flax
allows no such change under `jax.grad` and the like, of a module that was made outside.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import lax
from jax.extend.core import Literal

from rnnscan._messages import is_key
from rnnscan.nnx.cell import Cell


def make_carry(cell: Any, x: Any, rngs: nnx.Rngs | nnx.RngStream | None) -> Any:
    """The carry of a cell before the first step.

    Args:
        cell: a cell of `flax.nnx`, or a `Cell`.
        x: one step's input, of which only the type matters.
        rngs: where keys are drawn from if the carry depends on any, as `flax.nnx.RNN` draws them: from the stream
            "carry", which is forked, or from a stream itself; None: from where the cell draws them without.

    Returns:
        The carry. `rngs` and the cell are left as they are where it does not depend on a key.
    """
    if isinstance(cell, Cell):
        return cell.initial_carry(x)
    graphdef, *states = nnx.split(cell, nnx.RngState, ...)

    def make(key: Any, keys: Any) -> Any:
        copy = nnx.merge(graphdef, keys, states[1])
        return copy.initialize_carry(x.shape, nnx.RngStream(key, tag="carry"))

    key = jax.random.key(0)
    if _depends(make, key, states[0]):
        stream = rngs.carry.fork() if isinstance(rngs, nnx.Rngs) else rngs
        return cell.initialize_carry(x.shape, stream)
    return jax.tree.map(lambda leaf: _vary_as(x, leaf), make(key, states[0]))


def _vary_as(x: Any, leaf: Any) -> Any:
    """A leaf that varies over the mesh as x does, for under `jax.shard_map` the carry that the steps return will."""
    return leaf if is_key(leaf) else leaf + lax.full_like(x, 0, dtype=leaf.dtype, shape=())


def _depends(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a result of a function depends on its arguments."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    reached = set(jaxpr.invars)

    def is_reached(value: Any) -> bool:
        return not isinstance(value, Literal) and value in reached

    for equation in jaxpr.eqns:
        if any(map(is_reached, equation.invars)):
            reached.update(equation.outvars)
    return any(map(is_reached, jaxpr.outvars))
