"""How a primitive runs by a program: eagerly, lowered in the place of its equation, and under `checkify`.

JAX has no public way to register a rule of checkify. `error_checks` and `checkify_jaxpr` of `jax._src.checkify` are the
private names here (jax 0.10 to 0.12). Without them checkify would run a scan and check nothing in it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import jax
from jax._src import checkify
from jax.extend import core
from jax.interpreters import mlir

from rnnscan.ir.invalid_values import are_searched, run_checked_jaxpr
from rnnscan.ir.leaves import as_arrays


# (types of the operands, parameters, platform or None) -> program
ProgramOf: TypeAlias = Callable[[Sequence[Any], dict[str, Any], str | None], core.ClosedJaxpr]


def run_by_program(primitive: core.Primitive, program: ProgramOf, platforms: Sequence[str] = ()) -> None:
    """Run a primitive's equations by a program. Outside of `jax.jit` equal ones share the compiled program.

    Args:
        primitive: the primitive.
        program: makes the program.
        platforms: those that have programs of their own.
    """

    def evaluate(*operands: Any, **params: Any) -> list[Any]:
        arrays = as_arrays(operands)
        if are_searched() or getattr(jax.config, "jax_disable_jit", False):
            return run_checked_jaxpr(program([*map(jax.typeof, arrays)], params, None), arrays)
        return list(_jitted(primitive, **params)(*arrays))

    def lower(platform: str | None, context: Any, *operands: Any, **params: Any) -> Any:
        return _lower_jaxpr(context, program(context.avals_in, params, platform), operands)

    def check(*arguments: Any, **params: Any) -> Any:
        # With jax 0.12 a context stands before the error.
        context = [] if isinstance(arguments[0], checkify.Error) else [arguments[0]]
        error, enabled_errors, *operands = arguments[len(context) :]
        body = program([*map(jax.typeof, operands)], params, None)
        return checkify.checkify_jaxpr(*context, body, enabled_errors, error, *operands)

    primitive.def_impl(evaluate)
    mlir.register_lowering(primitive, partial(lower, None))
    for platform in platforms:
        mlir.register_lowering(primitive, partial(lower, platform), platform=platform)
    checkify.error_checks[primitive] = check


@lru_cache(maxsize=256)
def _jitted(primitive: core.Primitive, **params: Any) -> Callable[..., Any]:
    """A compiled function of an equation's operands. Its cache holds steps, and so the next equal step is the same."""

    def run(*operands: Any) -> Any:
        return primitive.bind(*operands, **params)

    return jax.jit(run)


def _lower_jaxpr(context: Any, closed: core.ClosedJaxpr, operands: Sequence[Any]) -> Any:
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
