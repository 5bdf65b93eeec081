"""Does a step have derivative rules, and do these have effects?

The trace of a step holds the function of a `jax.custom_vjp`, and not its rules. What these do besides computing
cotangents, such as `jax.debug.print`, a callback, a write to a ref or a log, shows in a trace of the derivative alone.
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import jax
from jax import core

from rnnscan._util import effects
from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.derivative_reads import all_cotangents, vjp_of_floats
from rnnscan.ir.bodies import with_bodies
from rnnscan.ir.leaves import places
from rnnscan.ir.program import Equation
from rnnscan.ir.trace import program_of


_WITH_RULES = frozenset({"custom_vjp_call", "custom_jvp_call"})


class RuleEffects(NamedTuple):
    """What the rules of custom derivatives do besides computing derivatives.

    Attributes:
        has_effects: whether a rule has effects.
        has_logs: whether a rule logs values for `vjp.with_logs`.
        once_forward: whether a rule of a forward pass has effects that must happen once for each step.
    """

    has_effects: bool = False
    has_logs: bool = False
    once_forward: bool = False


def effects_of_rules(equations: Iterable[Equation], orders: int = 2) -> RuleEffects:
    """The effects of the rules of custom derivatives in a step, whose equations have no effects themselves.

    Args:
        equations: the equations of the step.
        orders: the orders of derivatives to look at: rules may call functions with rules.
    """
    # Calls of one jitted function, such as `jax.nn.relu`, have the same rules.
    with_rules = with_bodies(each for each in equations if not _WITH_RULES.isdisjoint(each.names))
    different = {_operation(each): each for each in with_rules if each.name in _WITH_RULES}
    return _any_of(_of_derivative(equation, orders) for equation in different.values())


def _any_of(found: Iterable[RuleEffects]) -> RuleEffects:
    return RuleEffects(*map(any, zip(RuleEffects(), *found, strict=True)))


def has_jvp_rules(equations: Iterable[Equation]) -> bool:
    """Whether a step has a `jax.custom_jvp`."""
    return any("custom_jvp_call" in equation.names for equation in equations)


def _operation(equation: Equation) -> Hashable:
    return *map(id, equation.params.values()), *(str(atom.aval) for atom in equation.inputs)


def _of_derivative(equation: Equation, orders: int) -> RuleEffects:
    types = [atom.aval for atom in equation.inputs]
    # JAX differentiates nothing that a rule closes over, which are the first operands.
    first = equation.params.get("num_consts", 0)
    are_floats = (isinstance(aval, core.ShapedArray) and is_float(aval) for aval in types)
    floats = places([index >= first and is_one for index, is_one in enumerate(are_floats)])
    logs: list[Any] = []

    def derivative(*operands: Any) -> Any:
        results, vjp = vjp_of_floats(equation, operands, floats)
        cotangents = all_cotangents(equation, filter(is_float, results))
        if not hasattr(vjp, "with_logs"):  # Since jax 0.12.
            return vjp(cotangents)
        ct_operands, of_rules = vjp.with_logs(cotangents)
        logs.extend(jax.tree.leaves(of_rules))
        return ct_operands

    try:
        closed = jax.make_jaxpr(derivative)(*types)
    except Exception:  # It is for the caller who takes the derivative.
        return RuleEffects()
    of_rule = RuleEffects(bool(effects.ordered(closed.effects)), bool(logs))
    if effects.once(closed.effects):
        forward = jax.make_jaxpr(lambda *operands: vjp_of_floats(equation, operands, floats)[0])(*types)
        of_rule = of_rule._replace(once_forward=bool(effects.once(forward.effects)))
    within = effects_of_rules(program_of(closed).equations, orders - 1) if orders > 1 else RuleEffects()
    # Rules of rules run in a second derivative only, which the caller may not take.
    return _any_of([of_rule, within._replace(once_forward=False)])
