"""What is in a program of JAX."""

from collections.abc import Iterator
from typing import Any

from jax.extend import core

from rnnscan.ir.jaxprs import inner_jaxprs


def equations_of(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """The equations of a program, those of its loops too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
                yield from equations_of(getattr(value, "jaxpr", value))


def is_loop(equation: Any) -> bool:
    """Whether an equation is a loop: loops in place are `lax.while_loop`, others `lax.scan`."""
    return equation.primitive.name in ("scan", "while")


def body_of(loop: Any) -> core.Jaxpr:
    """The program of one trip of a loop."""
    return loop.params["jaxpr" if "jaxpr" in loop.params else "body_jaxpr"].jaxpr


def scans_that_run(jaxpr: core.Jaxpr) -> list[Any]:
    """The scans of a program, without those in while loops: these run where a parallel form is not finite."""
    inner = (
        body for equation in jaxpr.eqns if equation.primitive.name != "while" for body in inner_jaxprs(equation.params)
    )
    scans = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    return [*scans, *(scan for body in inner for scan in scans_that_run(body))]
