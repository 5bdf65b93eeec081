"""The bodies of loops, branches, calls, and functions with custom derivative rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax.extend import core

from rnnscan.ir.jaxprs import inner_jaxprs, opened_jaxpr
from rnnscan.ir.program import Equation, Value
from rnnscan.ir.trace import WITH_RULES, Inliner


# Operation -> the parameters that are bodies. Others, such as the reducer of `reduce`, are no programs of a user.
LOOPS_AND_CALLS: Mapping[str, tuple[str, ...]] = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "remat2": ("jaxpr",),
}
BODIES = {**LOOPS_AND_CALLS, **{name: (body,) for name, body in WITH_RULES.items()}}


def bodies_of(equation: Equation) -> list[list[Equation]]:
    """The bodies of an equation, each as equations; none if it is not a loop, branch or call."""
    params = [equation.params[name] for name in BODIES.get(equation.name, ())]
    bodies = (body for param in params for body in (param if isinstance(param, tuple | list) else [param]))
    return [equations_of(opened_jaxpr(body)[0]) for body in bodies]


def equations_of(jaxpr: core.Jaxpr) -> list[Equation]:
    """The equations of a jaxpr, such as a body, with those of the calls within it."""
    inliner = Inliner()
    consts, inputs = ([Value(var.aval) for var in group] for group in (jaxpr.constvars, jaxpr.invars))
    inliner.inline(jaxpr, consts, inputs)
    return inliner.equations


def with_bodies(equations: Iterable[Equation]) -> Iterator[Equation]:
    """Equations, each followed by those of its bodies."""
    for equation in equations:
        yield equation
        for jaxpr in inner_jaxprs(equation.params):
            yield from with_bodies(equations_of(jaxpr))


def carry_of_scan(
    body_inputs: Sequence[Any], body_outputs: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> range:
    """The places of a scan's carry among its inputs: after its constants, before what it scans over.

    Inputs that are scanned over, and stacked outputs, have one axis more outside than in the body. The parameters that
    tell the numbers have other names in other versions of jax.

    Args:
        body_inputs: the inputs of its body, or their types.
        body_outputs: the outputs of its body, or their types.
        inputs: its inputs, or their types.
        outputs: its outputs, or their types.
    """
    scanned = sum(len(out.shape) > len(inner.shape) for out, inner in zip(inputs, body_inputs, strict=True))
    carries = sum(len(out.shape) == len(inner.shape) for out, inner in zip(outputs, body_outputs, strict=True))
    end = len(inputs) - scanned
    return range(end - carries, end)
