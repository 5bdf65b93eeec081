"""Functions with a derivative of their own, under every order of JAX's transformations.

`jax.custom_jvp` batches a function and its rule apart from each other. Where the rule maps a result that the function
does not map, a jit between `jax.vmap` and the derivative makes the gradient too large by the size of the batch. Here a
primitive decides once which results are mapped, as `lax.scan` does, for the function and for its rule.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import DynamicJaxprTracer, JaxprTracer

from rnnscan.engine.analysis.leaves import as_arrays, replace_at
from rnnscan.engine.analysis.probe import no_axis_is_mapped
from rnnscan.engine.loops.checked import check_within
from rnnscan.engine.loops.flat_function import FlatFunction, is_zero, jvp
from rnnscan.engine.loops.lowering import lower_jaxpr
from rnnscan.engine.loops.unused_results import drop_unused
from rnnscan.ir.invalid_values import run_checked, run_checked_jaxpr


# (primals, tangents or symbolic zeros) -> (results, tangents or symbolic zeros), as for a `jax.custom_jvp`
Rule: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]


def are_unknown(tangents: Iterable[Any]) -> bool:
    """Whether a rule runs for reverse mode.

    JAX runs it on tangents that it does not know, to stage what depends on them.
    """
    return any(isinstance(tangent, JaxprTracer) for tangent in tangents)


def with_derivative(
    function: Callable[..., Any],
    rule: Rule,
    *,
    reference: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A function that JAX differentiates by a rule.

    Args:
        function: a function of pytrees. Neither it nor the rule may hold an array of a trace, because JAX caches them.
        rule: `(primals, tangents) -> (results, tangents)`. A tangent may be a symbolic zero.
        reference: a function with the same results, by which `jax.vmap` decides which of them it maps; None: the
            function.
    """

    def call(*arguments: Any) -> Any:
        operands, structure = jax.tree.flatten(arguments)
        result_structure = None

        def flat(function: Callable[..., Any], operands: Sequence[Any]) -> list[Any]:
            nonlocal result_structure
            leaves, result_structure = jax.tree.flatten(function(*jax.tree.unflatten(structure, operands)))
            return leaves

        def flat_rule(rule: Rule, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            nonlocal result_structure
            trees = [jax.tree.unflatten(structure, leaves) for leaves in (primals, tangents)]
            results, result_tangents = rule(*trees)
            leaves, result_structure = jax.tree.flatten(results)
            return leaves, jax.tree.leaves(result_tangents, is_leaf=is_zero)

        run = partial(flat, function)
        plain = partial(flat, reference) if reference else run
        leaves = _bind(FlatFunction(run, partial(flat_rule, rule), plain), operands)
        return jax.tree.unflatten(result_structure, leaves)

    return call


def differentiate_as(reference: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which JAX differentiates as if it were `reference`.

    Args:
        reference: a function of pytrees. It must hold no array of a trace.
        function: one with the same results, the faster one.
    """
    return with_derivative(function, partial(jvp, reference), reference=reference)


_call = core.Primitive("rnnscan_call")


def _bind(function: FlatFunction, operands: Sequence[Any]) -> list[Any]:
    """Call the function. In a jaxpr the call has the parameter `call_jaxpr`, as JAX's own calls have.

    JAX transforms other tracers than those of jaxprs first, and then asks for another function.
    """
    tracers = [operand for operand in operands if isinstance(operand, jax.core.Tracer)]
    is_staged = all(isinstance(tracer, DynamicJaxprTracer | JaxprTracer) for tracer in tracers)
    traced = function.traced(map(jax.typeof, operands)) if is_staged else None
    return _call.bind(*operands, function=function, call_jaxpr=traced)


def _run(*operands: Any, function: FlatFunction, call_jaxpr: Any) -> list[Any]:
    return (
        run_checked(lambda *operands: function.run(operands), *as_arrays(operands))
        if call_jaxpr is None
        else run_checked_jaxpr(call_jaxpr, operands)
    )


def _types(*types: Any, function: FlatFunction, call_jaxpr: Any) -> tuple[Sequence[Any], Any]:
    traced = call_jaxpr or function.traced(types)
    return traced.out_avals, traced.effects


def _program(types: Sequence[Any], params: dict[str, Any]) -> core.ClosedJaxpr:
    traced: core.ClosedJaxpr = params["call_jaxpr"] or params["function"].traced(types)
    return traced


def _lower(context: Any, *operands: Any, **params: Any) -> Any:
    return lower_jaxpr(context, _program(context.avals_in, params), operands)


def _differentiate(
    primals: Any, tangents: Any, *, function: FlatFunction, call_jaxpr: Any
) -> tuple[list[Any], list[Any]]:
    primals = as_arrays(primals)
    symbolic = [SymbolicZero(leaf.aval) if isinstance(leaf, ad.Zero) else leaf for leaf in as_arrays(tangents)]
    results, result_tangents = function.rule(primals, symbolic)
    return results, [ad.Zero(leaf.aval) if is_zero(leaf) else leaf for leaf in result_tangents]


def _transpose(cotangents: Any, *operands: Any, function: FlatFunction, call_jaxpr: Any) -> list[Any]:
    """The transpose of a function that is linear in its unknown operands."""
    operands = tuple(as_arrays(operands))
    unknown = [index for index, operand in enumerate(operands) if ad.is_undefined_primal(operand)]

    def linear(*unknown_operands: Any) -> list[Any]:
        return function.reference(replace_at(operands, unknown, unknown_operands))

    transposed = jax.linear_transpose(linear, *(operands[index].aval for index in unknown))
    ct_unknown = transposed([ad.instantiate_zeros(leaf) for leaf in cotangents])
    return replace_at([None] * len(operands), unknown, ct_unknown)


def _batch(
    axis: Any, operands: Any, axes: Any, *, function: FlatFunction, call_jaxpr: Any
) -> tuple[list[Any], list[int | None]]:
    operands = as_arrays(operands)
    if no_axis_is_mapped(axis, axes):
        results = _bind(function, operands)
        return results, [None] * len(results)
    mapped, result_axes = function.mapped(axis, axes, operands)
    return _bind(mapped, operands), result_axes


_call.multiple_results = True
_call.def_impl(_run)
_call.def_effectful_abstract_eval(_types)
mlir.register_lowering(_call, _lower)
check_within(_call, _program)
ad.primitive_jvps[_call] = _differentiate
ad.primitive_transposes[_call] = _transpose
# This rule knows the axis name, for cells with collectives over it.
batching.fancy_primitive_batchers[_call] = _batch
drop_unused(_call)
