"""The jaxprs in the parameters of an equation of a jaxpr, such as the body of a loop and the branches of a cond."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.extend import core


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[core.Jaxpr]:
    """The jaxprs among the parameters of an equation, closed ones without their constants."""
    for body in inner_bodies(params):
        yield opened_jaxpr(body)[0]


def inner_bodies(params: Any) -> Iterator[core.Jaxpr | core.ClosedJaxpr]:
    """The jaxprs among the parameters of an equation, or in one of them, as they are."""
    if is_jaxpr(params):
        yield params
    elif isinstance(params, tuple | list | dict):
        for param in params.values() if isinstance(params, dict) else params:
            yield from inner_bodies(param)


def opened_jaxpr(body: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
    """A jaxpr without its constants, and these; one that is not closed has none."""
    return (body.jaxpr, body.consts) if isinstance(body, core.ClosedJaxpr) else (body, [])


def is_jaxpr(value: Any) -> bool:
    """Whether a value is a jaxpr, closed or not."""
    return isinstance(value, _JAXPRS)


_JAXPRS = (core.Jaxpr, core.ClosedJaxpr)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, each followed by those of the jaxprs within it."""
    for equation in jaxpr.eqns:
        yield equation
        for body in inner_jaxprs(equation.params):
            yield from all_equations(body)
