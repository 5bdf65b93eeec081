"""The initial carry, which draws a key only if it is random.

Flax's cells draw a key even for zeros. That changes the key stream of the module, and Flax forbids changing a module
under transforms such as `jax.grad` if it was made outside.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import lax
from jax.extend.core import Literal

from rnnscan._util.messages import is_key
from rnnscan.nnx.cell import Cell


def make_carry(cell: Any, x: Any, rngs: nnx.Rngs | nnx.RngStream | None) -> Any:
    """The carry of a cell before the first step. If it does not depend on a key, `rngs` and the cell do not change.

    Args:
        cell: a cell of `flax.nnx`, or a `Cell`.
        x: one step's input; only its type matters.
        rngs: gives the keys of a random carry, as in `flax.nnx.RNN`: a fork of the stream "carry", or a stream; None:
            the cell's default.
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
    """Let an array vary over the mesh as x does: under `jax.shard_map` the next carry will."""
    return (
        leaf if not hasattr(leaf, "dtype") or is_key(leaf) else leaf + lax.full_like(x, 0, dtype=leaf.dtype, shape=())
    )


def _depends(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether any result of a function depends on its arguments."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    reached = set(jaxpr.invars)

    def is_reached(value: Any) -> bool:
        return not isinstance(value, Literal) and value in reached

    for equation in jaxpr.eqns:
        if any(map(is_reached, equation.invars)):
            reached.update(equation.outvars)
    return any(map(is_reached, jaxpr.outvars))
