"""Calls that compute results and tangents together, until partial evaluation takes them apart.

Under `jax.checkpoint`, and in the loops and branches of JAX, a derivative is staged before it is known whether reverse
mode follows. If it does, JAX evaluates what does not depend on the tangents, which are unknown, and stages the rest. A
call that is one operation would not let it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval


def take_apart(primitive: core.Primitive) -> None:
    """Evaluate calls in parts where JAX knows some of their operands and not all.

    Args:
        primitive: one with the parameter `function`, whose `in_parts` computes the same of the operands.
    """

    def evaluate(trace: Any, *tracers: Any, function: Any, call_jaxpr: Any) -> Sequence[Any]:
        if len({tracer.is_known() for tracer in tracers}) == 1:
            return trace.default_process_primitive(primitive, tracers, {"function": function, "call_jaxpr": call_jaxpr})
        with core.set_current_trace(trace):
            parts: Sequence[Any] = function.in_parts(tracers)
        return parts

    def evaluate_by_policy(saves: Callable[..., Any], unknown: Any, instantiated: Any, equation: Any) -> Any:
        """The rule for `jax.checkpoint`: that of a `jax.jit` around the parts."""
        if all(unknown):
            flags = [True] * len(equation.outvars)
            return None, equation, flags, flags, []
        in_parts = jax.jit(lambda *operands: equation.params["function"].in_parts(operands))
        (call,) = jax.make_jaxpr(in_parts)(*(var.aval for var in equation.invars)).eqns
        call = call.replace(invars=equation.invars, outvars=equation.outvars)
        return partial_eval.partial_eval_jaxpr_custom_rules[call.primitive](saves, unknown, instantiated, call)

    partial_eval.custom_partial_eval_rules[primitive] = evaluate
    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = evaluate_by_policy
