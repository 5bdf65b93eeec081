"""How a scan that is an equation of a jaxpr runs, and its derivative.

Forward mode computes values and tangents in one scan. Reverse mode runs a scan that saves what `ResidualPlan` says,
and a linear scan of the tangents, which is transposed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.extend import core
from jax.interpreters import ad, partial_eval

from rnnscan._util.varying import shard_as
from rnnscan.engine.analysis.effects_of_rules import has_jvp_rules
from rnnscan.engine.loops.stopping import stopping
from rnnscan.engine.plan.bound import SavingScan, active_results, saving_scan, scan_plan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive import batching as batching
from rnnscan.engine.primitive import dead_code as dead_code
from rnnscan.engine.primitive.joint import jointly
from rnnscan.engine.primitive.scan import (
    InnerScan,
    Saving,
    Scan,
    Tangents,
    bind,
    joint_scan_p,
    lowered_for_each_platform,
    scan_p,
    y_size,
)
from rnnscan.engine.run.forward import run_forward, run_saving, run_while
from rnnscan.engine.run.linear_scan import tangents_of_scan
from rnnscan.engine.run.matrix_windows import run_windows
from rnnscan.engine.run.saved import Saved
from rnnscan.engine.units.mesh import sharding_units
from rnnscan.ir.leaves import as_arrays, places, replace_at, split_list
from rnnscan.ir.rules import have_tangents, jvp_rule, transpose_rule, zero


def run_scan(
    operands: Sequence[Any],
    step: core.ClosedJaxpr,
    scan: Scan,
    saving: Saving | None = None,
    platform: str | None = None,
) -> list[Any]:
    """The results of a scan, by its plan for a platform. The other arguments are the parameters of the equation."""
    with sharding_units(scan.options.units):
        plan, arguments = scan_plan(step, scan, platform), _cut(scan, operands[: len(step.in_avals)])
        if saving is None and plan.window(scan.length) is not None and not plan.loops_forward:
            return run_windows(plan, operands)
        if scan.condition is not None:
            return run_while(plan, scan.condition, *arguments)
        if saving is not None:
            return run_saving(plan, saving.starts, arguments)
        final, ys = run_forward(plan, *arguments)
        return [*final, *ys]


def _cut(scan: Scan, operands: Sequence[Any]) -> list[list[Any]]:
    return split_list(operands, [scan.constants, scan.carry])


lowered_for_each_platform(scan_p, lambda *operands, **params: run_scan(operands, **params))
lowered_for_each_platform(
    joint_scan_p,
    lambda *operands, platform, **params: jointly(operands, **params, run=partial(run_scan, platform=platform)),
)


# Derivatives


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, step: core.ClosedJaxpr, scan: Scan, saving: Saving | None
) -> tuple[list[Any], list[Any]]:
    if saving is not None and saving.inner is not None and saving.inner.has_residuals:
        primals, results = as_arrays(primals), bind(primals, step, scan, saving)
        return results, _by_residuals(saving.inner, primals, as_arrays(tangents), results)
    if saving is not None:
        return jvp_rule(lambda *operands: _saving_every_step(operands, step, scan, saving), primals, tangents)
    plan = scan_plan(step, scan)
    if plan.window(scan.length) is not None:
        bind_itself = lambda *leaves: bind(leaves, step, scan)  # noqa: E731
        return jvp_rule(lambda *leaves: run_windows(plan, leaves), primals, tangents, bind_itself)
    primals, dots = as_arrays(primals), as_arrays(tangents)
    active = have_tangents(dots)
    if not any(active):
        results = bind(primals, step, scan)
        return results, [*map(zero, results)]
    # Reverse mode: JAX does not know these tangents, to stage what depends on them.
    if any(isinstance(dot, partial_eval.JaxprTracer) for dot in dots):
        return _reverse(primals, dots, step, scan, is_whole=True)
    flags = Tangents(tuple(active), tuple(active_results(step, scan, active)))
    # JAX makes zeros without the explicit axes of a mesh where none is in the context (JAX_REMAT3, jax 0.12.0).
    given = [shard_as(dots[index], jax.typeof(primals[index])) for index in places(active)]
    leaves = bind([*primals, *given], step, scan, tangents=flags)
    results, made = split_list(leaves, [len(flags.results)])
    return results, replace_at([*map(zero, results)], places(flags.results), made)


def _saving_every_step(operands: Sequence[Any], step: core.ClosedJaxpr, scan: Scan, saving: Saving) -> list[Any]:
    """The results of a scan that saves, by one that saves the leaves of chunks before every step."""
    jaxpr, chunk = step.jaxpr, scan.options.chunk or 1
    starts = [jaxpr.invars[scan.constants + leaf] for leaf in saving.starts]
    every = core.ClosedJaxpr(jaxpr.replace(outvars=[*jaxpr.outvars, *starts]), step.consts)
    results, stacks = split_list(bind(operands, every, scan), [len(jaxpr.outvars)])
    # The shorter chunk is the first to run.
    count, rest = divmod(scan.length, chunk)
    first = chunk - 1 if scan.reverse else rest
    return [*results, *(stack[first::chunk][:count] for stack in stacks)]


def _reverse(
    primals: Sequence[Any], tangents: Sequence[Any], step: core.ClosedJaxpr, scan: Scan, *, is_whole: bool
) -> tuple[list[Any], list[Any]]:
    """The results, and their tangents by a linear scan that reads what a scan has saved.

    Args:
        primals: the operands.
        tangents: their tangents, or symbolic zeros.
        step: the step.
        scan: the other parameters.
        is_whole: whether the scan that saves is one equation. Else the policy of a `jax.checkpoint` sees its loops.
    """
    plan, size = scan_plan(step, scan).for_derivatives, len(step.in_avals)
    arguments, saving = _cut(scan, primals[:size]), saving_scan(step, scan)
    parts = saving.parts(arguments[2], _save(saving, plan, arguments, is_whole=is_whole))
    saved, results = Saved.of(plan, scan, arguments, parts), [*parts[0], *parts[1]]
    tangents = replace_at(tangents[:size], [index for index, _ in scan.copied], tangents[size:])
    return results, tangents_of_scan(step, scan, saved, results, tangents)


def _save(saving: SavingScan, plan: ScanPlan, arguments: Sequence[list[Any]], *, is_whole: bool) -> list[Any]:
    offloaded = plan.residuals.offloaded
    # Before jax 0.12 partial evaluation of the loops would drop the rule of a `jax.custom_jvp`.
    loses_rules = jax.__version_info__ < (0, 12) and has_jvp_rules(plan.step.program.equations)
    # A policy sees nothing in a loop that stops.
    if not offloaded and (is_whole or loses_rules or saving.scan.is_counted):
        return bind([leaf for group in arguments for leaf in group], saving.step, saving.scan, saving.saving)
    # No type says that a result lies in host memory. One may be a y too, which does not.
    stacks = {saving.saved[index] for index in offloaded} - {*saving.ys}
    made = frozenset(index for group, index in stacks if group == "made")
    return run_saving(scan_plan(saving.step, saving.scan), saving.saving.starts, arguments, made)


def _by_residuals(inner: InnerScan, operands: list[Any], tangents: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The tangents of the results of a scan, which read the residuals among these."""
    step, scan = inner.step, inner.scan
    plan, arguments = scan_plan(step, scan).for_derivatives, _cut(scan, operands)
    parts = saving_scan(step, scan, whole=True).parts(arguments[2], results)
    saved, (values, residuals) = Saved.of(plan, scan, arguments, parts), split_list(results, [len(inner.reads)])
    return [*tangents_of_scan(step, scan, saved, values, tangents), *map(zero, residuals)]


ad.primitive_jvps[scan_p] = _differentiate
ad.primitive_jvps[joint_scan_p] = lambda primals, dots, **params: jvp_rule(
    lambda *operands: jointly(operands, **params), primals, dots
)


def _plain(operands: Sequence[Any], step: core.ClosedJaxpr, scan: Scan) -> list[Any]:
    """The results by `lax.scan`, for the transpose of a scan that is linear in some operands."""
    constants, carry, xs = _cut(scan, operands[: len(step.in_avals)])
    ys, condition = y_size(step, scan), scan.condition

    def run_step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        new_carry, y, _ = split_list(core.jaxpr_as_fun(step)(*constants, *carry, *x), [scan.carry, ys])
        return new_carry, y

    def run_or_hold(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        holds = lambda carry: core.jaxpr_as_fun(condition)(*constants, *carry)[0]  # noqa: E731
        return stopping(run_step, holds, step.out_avals[scan.carry :][:ys])(carry, x)[:2]

    run = run_step if condition is None else run_or_hold
    final, stacks = lax.scan(run, carry, xs, length=scan.length, reverse=scan.reverse)
    return [*final, *stacks]


def _transpose(cotangents: Sequence[Any], *operands: Any, saving: Saving | None, **params: Any) -> list[Any]:
    run = _plain if saving is None else partial(_saving_every_step, saving=saving)
    return transpose_rule(lambda *leaves: run(leaves, **params), cotangents, operands)


ad.primitive_transposes[scan_p] = _transpose
ad.primitive_transposes[joint_scan_p] = lambda cotangents, *operands, **params: transpose_rule(
    lambda *leaves: jointly(leaves, **params, run=_plain), cotangents, operands
)


# Partial evaluation


def _evaluated(primitive: core.Primitive, in_parts: Callable[..., list[Any]]) -> None:
    """Take a scan apart of which JAX knows some operands, as for a transpose."""

    def evaluate(trace: Any, *tracers: Any, **params: Any) -> Sequence[Any]:
        if params.get("saving") is not None or len({tracer.is_known() for tracer in tracers}) == 1:
            results: Sequence[Any] = trace.default_process_primitive(primitive, tracers, params)
            return results
        with core.set_current_trace(trace):
            return in_parts(tracers, **params)

    partial_eval.custom_partial_eval_rules[primitive] = evaluate


def _in_parts(
    operands: Sequence[Any], *, step: core.ClosedJaxpr, scan: Scan, tangents: Tangents, is_whole: bool
) -> list[Any]:
    """Values and tangents as reverse mode computes them."""
    primals, dots = split_list(operands, [len(tangents.operands)])
    every = replace_at([*map(zero, primals)], places(tangents.operands), dots)
    results, result_dots = _reverse(primals, every, step, scan, is_whole=is_whole)
    made = [result_dots[index] for index in places(tangents.results)]
    return [*results, *map(ad.instantiate_zeros, made)]


def _evaluate_by_policy(saves: Callable[..., Any], unknown: Any, instantiated: Any, equation: Any) -> Any:
    """The rule for `jax.checkpoint`: that of a `jax.jit` around the parts."""
    if all(unknown):
        flags = [True] * len(equation.outvars)
        return None, equation, flags, flags, []
    in_parts = jax.jit(lambda *operands: _in_parts(operands, **equation.params, is_whole=False))
    (call,) = jax.make_jaxpr(in_parts)(*(var.aval for var in equation.invars)).eqns
    call = call.replace(invars=equation.invars, outvars=equation.outvars)
    return partial_eval.partial_eval_jaxpr_custom_rules[call.primitive](saves, unknown, instantiated, call)


# `lax.scan` is taken apart within its body too.
_evaluated(scan_p, lambda tracers, step, scan, saving: _plain(tracers, step, scan))
_evaluated(joint_scan_p, partial(_in_parts, is_whole=True))
partial_eval.partial_eval_jaxpr_custom_rules[joint_scan_p] = _evaluate_by_policy
