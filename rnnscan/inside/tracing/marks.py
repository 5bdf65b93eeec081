"""Marks in jaxprs: equations that are the identity, whose name says which value of a traced function they hold."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
from jax import lax

from rnnscan.ir.jaxprs import inner_jaxprs
from rnnscan.ir.opened import checkpointed


_MARK = "rnnscan trace "


def mark(value: Any, owner: int, number: int) -> Any:
    """The value, marked by an equation, also within a nested `jit`.

    Args:
        value: an array.
        owner: the number of the trace, which no other trace has.
        number: the number of the mark in its trace.
    """

    def marked(value: jax.Array) -> jax.Array:
        # `vmap` puts its axis at the front of what these return, wherever it was.
        axes = tuple(range(1, value.ndim + 1))
        return lax.squeeze(lax.broadcast_in_dim(value, (1, *value.shape), axes), (0,))

    marked.__name__ = f"{_MARK}{owner} {number}"
    return jax.jit(marked)(value)


def number_of(eqn: Any, owner: int) -> int | None:
    """The number of the mark of a trace that an equation is; None for other equations."""
    begin, name = f"{_MARK}{owner} ", str(eqn.params.get("name", ""))
    if not name.startswith(begin):
        return None
    # A gradient within the function also has the transpose of a mark, which holds a cotangent.
    body = eqn.params["jaxpr"].jaxpr
    makers = [inner.primitive.name for inner in body.eqns if body.outvars and body.outvars[0] in inner.outvars]
    return int(name.removeprefix(begin)) if makers == ["squeeze"] else None


def marks_in(jaxpr: Any, owner: int) -> Counter[int]:
    """How often each mark of a trace is in a jaxpr, those within its equations included."""
    return Counter(_numbers(jaxpr, owner))


def _numbers(jaxpr: Any, owner: int) -> Iterator[int]:
    for eqn in jaxpr.eqns:
        number = number_of(eqn, owner)
        if number is not None:
            yield number
            continue
        inner = checkpointed(eqn)  # Under JAX_REMAT3=1 it is in an object among the parameters.
        for body in inner_jaxprs(eqn.params) if inner is None else [getattr(inner, "jaxpr", inner)]:
            yield from _numbers(body, owner)
