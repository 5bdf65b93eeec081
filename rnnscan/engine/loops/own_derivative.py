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

from rnnscan.engine.analysis.leaves import as_arrays, places, replace_at, split_list
from rnnscan.engine.analysis.probe import no_axis_is_mapped
from rnnscan.engine.loops.checked import check_within
from rnnscan.engine.loops.flat_function import FlatFunction, Moving, is_zero, jvp
from rnnscan.engine.loops.parts import take_apart
from rnnscan.engine.loops.unused_results import drop_unused
from rnnscan.ir.invalid_values import run_checked, run_checked_jaxpr


# (primals, tangents or symbolic zeros) -> (results, tangents or symbolic zeros), as for a `jax.custom_jvp`
Rule: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
# (batch axis, axes of the arguments, arguments) -> (results, axes of their leaves); or None
Batched: TypeAlias = Callable[[Any, Any, Any], tuple[Any, list[int | None]] | None]


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
    batch_axis: Callable[[int], int] = lambda _: 0,
    batched: Batched | None = None,
    together: tuple[Rule, Moving] | None = None,
    saving: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """A function that JAX differentiates by a rule.

    Args:
        function: a function of pytrees. Neither it nor the rule may hold an array of a trace, because JAX caches them.
        rule: `(primals, tangents) -> (results, tangents)`. A tangent may be a symbolic zero.
        reference: a function with the same results, by which `jax.vmap` decides which of them it maps; None: the
            function.
        batch_axis: position of a leaf of the results -> the axis that `jax.vmap` puts its batch on.
        batched: makes the call under `jax.vmap`; None: the function is mapped as it is.
        together: a rule that computes results and tangents together, for forward mode, and which results have a
            tangent; None: forward mode uses `rule` too.
        saving: structure of the arguments -> the call in two parts, one that saves residuals and one that reads them,
            for a scan around it (`loops/saving.py`).
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

        def flat_batched(axis: Any, axes: Sequence[Any], operands: Sequence[Any]) -> Any:
            nonlocal result_structure
            assert batched is not None
            mapped = batched(axis, *(jax.tree.unflatten(structure, leaves) for leaves in (axes, operands)))
            if mapped is None:
                return None
            results, result_axes = mapped
            leaves, result_structure = jax.tree.flatten(results)
            return leaves, result_axes

        run = partial(flat, function)
        plain = partial(flat, reference) if reference else run
        forward = None if together is None else (partial(flat_rule, together[0]), together[1])
        in_rows = flat_batched if batched else None
        in_two = saving and saving(structure)
        flat_function = FlatFunction(run, partial(flat_rule, rule), plain, batch_axis, in_rows, forward, saving=in_two)
        leaves = _bind(flat_function, operands)
        return jax.tree.unflatten(result_structure, leaves)

    return call


def differentiate_as(reference: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which JAX differentiates as if it were `reference`.

    Args:
        reference: a function of pytrees. It must hold no array of a trace.
        function: one with the same results, the faster one.
    """
    return with_derivative(function, partial(jvp, reference), reference=reference)


_call, _call_in_parts = core.Primitive("rnnscan_call"), core.Primitive("rnnscan_call")


def _bind(function: FlatFunction, operands: Sequence[Any]) -> list[Any]:
    """Call the function. In a jaxpr the call has the parameter `call_jaxpr`, as JAX's own calls have.

    JAX transforms other tracers than those of jaxprs first, and then asks for another function.
    """
    tracers = [operand for operand in operands if isinstance(operand, jax.core.Tracer)]
    is_staged = all(isinstance(tracer, DynamicJaxprTracer | JaxprTracer) for tracer in tracers)
    traced = function.traced(map(jax.typeof, operands)) if is_staged else None
    primitive = _call if function.in_parts is None else _call_in_parts
    return primitive.bind(*operands, function=function, call_jaxpr=traced)


def _run(*operands: Any, function: FlatFunction, call_jaxpr: Any) -> list[Any]:
    return (
        run_checked(lambda *operands: function.run(operands), *as_arrays(operands))
        if call_jaxpr is None
        else run_checked_jaxpr(call_jaxpr, operands)
    )


def _types(*types: Any, function: FlatFunction, call_jaxpr: Any) -> tuple[Sequence[Any], Any]:
    traced = call_jaxpr or function.traced(types)
    return traced.out_avals, traced.effects


def _lower(context: Any, *operands: Any, function: FlatFunction, call_jaxpr: Any) -> Any:
    traced = call_jaxpr or function.traced(context.avals_in)
    # Inlined. A function of the module would materialize its operands: an LSTM took one stack more (jaxlib 0.10.0).
    lowered = [mlir.ir_constants(const, const_lowering=context.const_lowering) for const in traced.consts]
    consts = [values[0] if len(values) == 1 else values for values in lowered]
    results, tokens = mlir.jaxpr_subcomp(
        context.module_context,
        traced.jaxpr,
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


def _differentiate(
    primals: Any, tangents: Any, *, function: FlatFunction, call_jaxpr: Any
) -> tuple[list[Any], list[Any]]:
    primals = as_arrays(primals)
    symbolic = [SymbolicZero(leaf.aval) if isinstance(leaf, ad.Zero) else leaf for leaf in tangents]
    moves = [not is_zero(leaf) and leaf.dtype != jax.dtypes.float0 for leaf in symbolic]
    if function.together is None or are_unknown(tangents) or not any(moves):
        results, result_tangents = function.rule(primals, symbolic)
        return results, [ad.Zero(leaf.aval) if is_zero(leaf) else leaf for leaf in result_tangents]
    results_move = function.together[1](moves)
    leaves = _bind(function.with_tangents(moves), [*primals, *(tangents[index] for index in places(moves))])
    results, moving_tangents = split_list(leaves, [len(results_move)])
    zeros = [ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in results]
    return results, replace_at(zeros, places(results_move), moving_tangents)


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
    results_and_axes = None if function.batched is None else function.batched(axis, axes, operands)
    if results_and_axes is not None:
        return results_and_axes
    mapped, result_axes = function.mapped(axis, axes, operands)
    return _bind(mapped, operands), result_axes


for _primitive in (_call, _call_in_parts):
    _primitive.multiple_results = True
    _primitive.def_impl(_run)
    _primitive.def_effectful_abstract_eval(_types)
    mlir.register_lowering(_primitive, _lower)
    check_within(_primitive)
    ad.primitive_jvps[_primitive] = _differentiate
    ad.primitive_transposes[_primitive] = _transpose
    # This rule knows the axis name, for cells with collectives over it.
    batching.fancy_primitive_batchers[_primitive] = _batch
    drop_unused(_primitive)
take_apart(_call_in_parts)
