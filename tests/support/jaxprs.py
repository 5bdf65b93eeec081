"""What is in a program of JAX."""

from collections.abc import Iterator
from typing import Any

from jax.extend import core


def equations_of(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """The equations of a program, those of its loops too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
                yield from equations_of(getattr(value, "jaxpr", value))
