"""The bodies of loops, branches, calls, and functions with custom derivative rules."""

from collections.abc import Mapping

from rnnscan.ir.program import Equation, Value
from rnnscan.ir.trace import Inliner


# Operation -> the parameters that are bodies. Others, such as the reducer of `reduce`, are no programs of a user.
LOOPS_AND_CALLS: Mapping[str, tuple[str, ...]] = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "checkpoint": ("jaxpr",),
    "remat2": ("jaxpr",),
}
# The body computes the values, and a rule of the user's the derivatives.
WITH_RULES: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("custom_jvp_call", "custom_vjp_call", "rnnscan_call"), ("call_jaxpr",)
)
BODIES = {**LOOPS_AND_CALLS, **WITH_RULES}


def bodies_of(equation: Equation) -> list[list[Equation]]:
    """The bodies of an equation, each as equations; none if it is not a loop, branch or call."""
    params = [equation.params[name] for name in BODIES.get(equation.name, ())]
    bodies = []
    for body in (body for param in params for body in (param if isinstance(param, tuple | list) else [param])):
        inliner, jaxpr = Inliner(), getattr(body, "jaxpr", body)
        consts, inputs = ([Value(var.aval) for var in group] for group in (jaxpr.constvars, jaxpr.invars))
        inliner.inline(jaxpr, consts, inputs)
        bodies.append(inliner.equations)
    return bodies
