"""Side effects: what a program does besides computing, and a loaded one cannot."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


def side_effects(jaxpr: Any) -> list[str]:
    """The host callbacks and other effects of a jaxpr, by the names of their primitives."""
    found = {name for name in _primitives(jaxpr.jaxpr) if "callback" in name or name == "debug_print"}
    return sorted(found or {str(effect) for effect in jaxpr.effects})


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for param in equation.params.values():
            for value in param if isinstance(param, tuple | list) else (param,):
                if isinstance(value, ClosedJaxpr | Jaxpr):
                    yield from _primitives(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
