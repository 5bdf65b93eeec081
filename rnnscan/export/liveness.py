"""Which arguments of a function its result depends on."""

from typing import Any

from jax.extend.core import Literal

from rnnscan.ir.jaxprs import inner_jaxprs
from rnnscan.ir.traits import Kind, traits_of


def arguments_read(jaxpr: Any, is_read: list[bool] | None = None) -> list[bool]:
    """Whether each argument of a jaxpr without side effects is read.

    `jax.export` cannot say: with symbolic sizes it keeps all arguments. Loops and branches count as reading all that
    they are given.

    Args:
        jaxpr: the jaxpr.
        is_read: whether each result is read; None: all are.
    """
    outputs = zip(jaxpr.outvars, is_read or [True] * len(jaxpr.outvars), strict=True)
    live = {value for value, wanted in outputs if wanted and not isinstance(value, Literal)}
    for equation in reversed(jaxpr.eqns):
        wanted = [value in live for value in equation.outvars]
        if not any(wanted):
            continue
        called = _called(equation)
        read = [True] * len(equation.invars) if called is None else arguments_read(called, wanted)
        pairs = zip(equation.invars, read, strict=True)
        live |= {value for value, needed in pairs if needed and not isinstance(value, Literal)}
    return [value in live for value in jaxpr.invars]


def _called(equation: Any) -> Any:
    """The jaxpr of a function that an equation calls, if its arguments and results are that function's, in order."""
    if traits_of(equation.primitive.name).kind is not Kind.CALL:
        return None
    bodies = list(inner_jaxprs(equation.params))
    if len(bodies) != 1:
        return None
    (jaxpr,) = bodies
    fits = len(jaxpr.invars) == len(equation.invars) and len(jaxpr.outvars) == len(equation.outvars)
    return jaxpr if fits else None
