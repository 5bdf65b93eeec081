"""Which arguments of a function its result depends on."""

from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


# Calls whose arguments and results are those of the function called, in order.
_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call", "rnnscan_call")


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
    """The jaxpr of a function that an equation calls, if it is one of `_CALLS`."""
    if equation.primitive.name not in _CALLS:
        return None
    inner = [value for value in equation.params.values() if isinstance(value, ClosedJaxpr | Jaxpr)]
    if len(inner) != 1:
        return None
    jaxpr = inner[0].jaxpr if isinstance(inner[0], ClosedJaxpr) else inner[0]
    fits = len(jaxpr.invars) == len(equation.invars) and len(jaxpr.outvars) == len(equation.outvars)
    return jaxpr if fits else None
