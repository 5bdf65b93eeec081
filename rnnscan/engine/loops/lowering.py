"""The lowering of a call, in the place of its equation."""

from collections.abc import Sequence
from typing import Any

from jax.extend import core
from jax.interpreters import mlir


def lower_jaxpr(context: Any, closed: core.ClosedJaxpr, operands: Sequence[Any]) -> Any:
    """Lower a jaxpr in the place of an equation.

    A function of the module would materialize its operands: an LSTM took one stack more (jaxlib 0.10.0).

    Args:
        context: the context of the equation's lowering rule.
        closed: the jaxpr.
        operands: the operands of the rule.
    """
    lowered = [mlir.ir_constants(const, const_lowering=context.const_lowering) for const in closed.consts]
    consts = [values[0] if len(values) == 1 else values for values in lowered]
    results, tokens = mlir.jaxpr_subcomp(
        context.module_context,
        closed.jaxpr,
        context.name_stack,
        context.tokens_in,
        consts,
        *operands,
        dim_var_values=context.dim_var_values,
        const_lowering=context.const_lowering,
        outer_traceback=context.traceback,
    )
    context.set_tokens_out(tokens)
    return results
