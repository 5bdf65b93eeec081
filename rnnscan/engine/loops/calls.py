"""Calls that run one function and are differentiated as another. Their parameters are jaxprs.

    rnnscan_call[call_jaxpr, derivative](*operands) -> results

`call_jaxpr` is what runs. `derivative` has the jaxpr that is differentiated in its place; of a parallel form also that
of the loop itself, which is differentiated where the derivative of the form is not finite.

A `jax.custom_jvp` would batch the function and its rule apart from each other. Where the rule maps a result that the
function does not map, a jit between `jax.vmap` and the derivative makes the gradient too large by the size of the
batch. And partial evaluation drops the rule of a `jax.custom_jvp` (before jax 0.12). Here a primitive decides once
which results are mapped, as `lax.scan` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import chain, compress
from operator import and_, or_
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import ad, partial_eval

from rnnscan._checks import has_remat3
from rnnscan._util import effects
from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.activity import active_values, register_activity
from rnnscan.engine.loops.exact import Exact, Parallel, all_finite, guarded
from rnnscan.engine.loops.lowering import run_by_program
from rnnscan.ir.jaxprs import without_dead_code
from rnnscan.ir.leaves import as_arrays, places, replace_at, split_list
from rnnscan.ir.program import Equation
from rnnscan.ir.rules import batch_by, have_tangents, jvp, mapped_results, over_axis, transpose_rule, zero
from rnnscan.ir.trace import program_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Derivative:
    """What is differentiated in the place of what runs. As a pytree its leaves are the jaxprs.

    Attributes:
        reference: its jaxpr. With `exact` it returns after the results whether each is right.
        exact: what is differentiated where the derivative of the reference is not finite; None: the reference always.
        tangents_of: the same of the call whose tangents are the results; None: they are no tangents.
        active: the operands of that call that have tangents. These are the last operands.
        keeps_values: whether a derivative has the values of what runs, and not of the reference.
    """

    # A jaxpr that is printed shows what runs.
    reference: core.ClosedJaxpr = field(repr=False)
    exact: core.ClosedJaxpr | None = field(default=None, repr=False)
    tangents_of: "Derivative | None" = field(default=None, repr=False)
    active: tuple[int, ...] = field(default=(), metadata={"static": True})
    keeps_values: bool = field(default=True, metadata={"static": True})

    def pairs(self, operands: int) -> list[tuple[int, int]]:
        """The places of the operands that have tangents, and of these tangents, among so many operands."""
        return [*zip(self.active, range(operands - len(self.active), operands), strict=True)]


call_p = core.Primitive("rnnscan_call")
call_p.multiple_results = True


def differentiate_as(
    reference: Callable[..., Any], function: Callable[..., Any], *, keeps_values: bool = False
) -> Callable[..., Any]:
    """`function`, which JAX differentiates as if it were `reference`.

    Args:
        reference: a function of pytrees.
        function: one with the same results, the faster one.
        keeps_values: whether a derivative computes the values by the function too, and not by the reference.
    """

    def call(*arguments: Any) -> Any:
        types = jax.tree.map(jax.typeof, arguments)
        runs, results = jax.make_jaxpr(function, return_shape=True)(*types)
        differentiated = jax.make_jaxpr(reference)(*types)
        leaves = _bind(jax.tree.leaves(arguments), runs, Derivative(differentiated, keeps_values=keeps_values))
        return jax.tree.unflatten(jax.tree.structure(results), leaves)

    return call


def or_exact(parallel: Parallel, exact: Exact, differentiated: Exact) -> Exact:
    """The results of a parallel function, and of an exact one where those are not to be trusted.

    Derivatives of every order are those of the parallel function, and of the exact one where they are not finite.

    Args:
        parallel: `(*arguments) -> (results, whether each is right)`.
        exact: the same results.
        differentiated: a function with the same results, which is differentiated in place of the exact one.
    """

    def run(*arguments: Any) -> list[Any]:
        types = [*map(jax.typeof, arguments)]
        reference = jax.make_jaxpr(lambda *leaves: [*chain(*parallel(*leaves))])(*types)
        exactly, of_derivative = (jax.make_jaxpr(function)(*types) for function in (exact, differentiated))
        return _bind(arguments, _either(reference, exactly), Derivative(reference, of_derivative))

    return run


def _either(reference: core.ClosedJaxpr, exact: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The results of a reference where they are right, and the exact ones elsewhere."""

    def parallel(*arguments: Any) -> tuple[list[Any], list[Any]]:
        results, trusted = split_list(core.jaxpr_as_fun(reference)(*arguments), [len(exact.out_avals)])
        return results, trusted

    return jax.make_jaxpr(guarded(parallel, core.jaxpr_as_fun(exact)))(*exact.in_avals)


def _bind(operands: Sequence[Any], call_jaxpr: core.ClosedJaxpr, derivative: Derivative) -> list[Any]:
    return list(call_p.bind(*operands, call_jaxpr=call_jaxpr, derivative=derivative))


call_p.def_effectful_abstract_eval(lambda *_, call_jaxpr, derivative: (call_jaxpr.out_avals, call_jaxpr.effects))
run_by_program(call_p, lambda _, params, __: without_dead_code(params["call_jaxpr"]))


# Derivatives


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: core.ClosedJaxpr, derivative: Derivative
) -> tuple[list[Any], list[Any]]:
    primals, dots = as_arrays(primals), as_arrays(tangents)
    reference, exact, active = derivative.reference, derivative.exact, tuple(places(have_tangents(dots)))
    results = _bind(primals, call_jaxpr, derivative) if derivative.keeps_values or not active else []
    if not active:
        return results, [*map(zero, results)]
    if exact is None:
        values, result_dots = jvp(core.jaxpr_as_fun(reference), primals, dots)
        return results or values, result_dots
    types = [*exact.in_avals, *(exact.in_avals[index].to_tangent_aval() for index in active)]
    of_reference, of_exact = (
        jax.make_jaxpr(partial(_tangents, each, active, len(results)))(*types) for each in (reference, exact)
    )
    of_call = Derivative(of_reference, of_exact, derivative, active)
    return results, _bind([*primals, *(dots[index] for index in active)], _either(of_reference, of_exact), of_call)


ad.primitive_jvps[call_p] = _differentiate


def _active_results(equation: Equation, active: Sequence[bool]) -> list[bool]:
    """Whether each result has a tangent, given which operands have."""
    derivative: Derivative = equation.params["derivative"]
    if derivative.exact is not None:  # The tangents of a parallel form are those of a call.
        return [any(active) and is_float(output) for output in equation.outputs]
    program = program_of(derivative.reference)
    values = active_values(program, compress(program.known, active))
    return [atom in values for atom in program.stacked]


register_activity(call_p.name, _active_results)


def _transpose(
    cotangents: Sequence[Any], *operands: Any, call_jaxpr: core.ClosedJaxpr, derivative: Derivative
) -> list[Any]:
    of, active = derivative.tangents_of, derivative.active
    if of is None or of.exact is None:
        return transpose_rule(core.jaxpr_as_fun(derivative.exact or derivative.reference), cotangents, operands)
    primals, dots = split_list(as_arrays(operands), [len(operands) - len(active)])
    given = [not isinstance(leaf, ad.Zero) for leaf in cotangents]
    leaves = [*primals, *(leaf for leaf, is_given in zip(cotangents, given, strict=True) if is_given)]
    of_reference, of_exact = (
        jax.make_jaxpr(partial(_cotangents, each, active, given))(*map(jax.typeof, leaves))
        for each in (of.reference, of.exact)
    )
    ct_dots = _bind(leaves, _either(of_reference, of_exact), Derivative(of_reference, of_exact))
    pairs = zip(ct_dots, dots, strict=True)
    return [None] * len(primals) + [leaf if ad.is_undefined_primal(dot) else None for leaf, dot in pairs]


ad.primitive_transposes[call_p] = _transpose


def _tangents(closed: core.ClosedJaxpr, active: Sequence[int], count: int, *leaves: Any) -> list[Any]:
    """The tangents of the results of a reference, or of an exact jaxpr.

    Args:
        closed: the jaxpr.
        active: the positions of operands that have tangents.
        count: the number of results.
        leaves: the operands and these tangents.
    """
    primals, dots = split_list(leaves, [len(closed.in_avals)])
    results, result_dots = jvp(core.jaxpr_as_fun(closed), primals, replace_at([*map(zero, primals)], active, dots))
    return _trusted([*map(ad.instantiate_zeros, result_dots[:count])], results[count:])


def _cotangents(closed: core.ClosedJaxpr, active: Sequence[int], given: Sequence[bool], *leaves: Any) -> list[Any]:
    """The cotangents of active operands. `given`: for each result whether it has one. These are the last leaves."""
    primals, cotangents = split_list(leaves, [len(closed.in_avals)])

    def of_active(*some: Any) -> tuple[list[Any], list[Any]]:
        results, trusted = split_list(core.jaxpr_as_fun(closed)(*replace_at(primals, active, some)), [len(given)])
        return results, trusted

    results, vjp, trusted = jax.vjp(of_active, *(primals[index] for index in active), has_aux=True)
    zeros = [lax.full_like(leaf, 0) for leaf in results]
    return _trusted(vjp(replace_at(zeros, places(given), cotangents)), trusted)


def _trusted(derivatives: Sequence[Any], trusted: Sequence[Any]) -> list[Any]:
    """Derivatives, and of those of a reference whether all is right."""
    if not trusted:
        return [*derivatives]
    is_right = reduce(and_, map(jnp.all, trusted)) & all_finite(derivatives)
    return [*derivatives, *[is_right] * len(derivatives)]


# Rows


def _batch(
    axis: Any,
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    call_jaxpr: core.ClosedJaxpr,
    derivative: Derivative,
) -> tuple[list[Any], list[int | None]]:
    operands, axes = list(operands), list(axes)
    for pair in derivative.pairs(len(operands)):  # Of a value and its tangent both have rows, or none has.
        for place in pair:
            if axes[place] is None and any(axes[other] is not None for other in pair):
                operands[place] = jnp.broadcast_to(operands[place], (axis.size, *operands[place].shape))
                axes[place] = 0
    types, mapped = [*map(jax.typeof, operands)], [False] * len(call_jaxpr.out_avals)
    for closed in (call_jaxpr, *jax.tree.leaves(derivative)):
        over, size = partial(over_axis, axis, axes=axes[: len(closed.in_avals)]), len(closed.in_avals)
        mapped = [*map(or_, mapped, mapped_results(over, core.jaxpr_as_fun(closed), types[:size]))]

    def on_rows(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
        size, flags = len(closed.in_avals), len(closed.out_avals) - len(mapped)
        out_axes = [*(0 if maps else None for maps in mapped), *[0] * flags]
        return jax.make_jaxpr(over_axis(axis, core.jaxpr_as_fun(closed), axes[:size], out_axes))(*types[:size])

    results = _bind(operands, on_rows(call_jaxpr), jax.tree.map(on_rows, derivative))
    return results, [0 if maps else None for maps in mapped]


batch_by(call_p, _batch)


# Dead code


def _drop_unused(used: Sequence[bool], *others: Any) -> tuple[list[bool], Any]:
    """What nothing reads is not computed, and what only that needs is no operand, as for `lax.scan`."""
    equation = others[-1]  # From jax 0.12 on the references that are read come before it.
    call_jaxpr, derivative, count = equation.params["call_jaxpr"], equation.params["derivative"], len(equation.invars)
    if effects.ordered(equation.effects):
        return [True] * count, equation
    if not any(used):
        return [False] * count, None

    def read(closed: core.ClosedJaxpr) -> list[bool]:
        """The results that are read. Whether each is right comes after the results."""
        return [*used, *used][: len(closed.out_avals)]

    needed = [False] * count
    for closed in (call_jaxpr, *jax.tree.leaves(derivative)):
        operands = partial_eval.dce_jaxpr(closed.jaxpr, read(closed))[1]
        needed[: len(operands)] = map(or_, needed, operands)
    for value, tangent in derivative.pairs(count):
        needed[value] |= needed[tangent]
    left = {old: new for new, old in enumerate(places(needed))}
    active = tuple(left[value] for value, tangent in derivative.pairs(count) if needed[tangent])

    def live(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
        jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, read(closed), needed[: len(closed.in_avals)])
        return core.ClosedJaxpr(jaxpr, closed.consts)

    runs = live(call_jaxpr)
    return needed, equation.replace(
        invars=[equation.invars[index] for index in places(needed)],
        outvars=[equation.outvars[index] for index in places(used)],
        effects=runs.effects,
        params={"call_jaxpr": runs, "derivative": replace(jax.tree.map(live, derivative), active=active)},
    )


partial_eval.dce_rules[call_p] = _drop_unused


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose values run again on the backward pass.

    With `JAX_REMAT3=1` a checkpoint is an operation of JAX's high level, which no call of the engine can hold
    (jax 0.12). There its values are kept.
    """
    if has_remat3():
        return function
    checkpointed: Callable[..., Any] = jax.checkpoint(function, prevent_cse=False)
    return checkpointed
