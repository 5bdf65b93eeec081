"""Run a cell until a condition stops it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from rnnscan._util.effects import once
from rnnscan._util.sources import named_after, scope_of
from rnnscan._util.step_wrappers import Step, type_of_step
from rnnscan._util.varying import vary, varying
from rnnscan.engine.cache.program_cache import ClosesOverArraysError
from rnnscan.engine.call.prepare import Call, prepare
from rnnscan.engine.call.route import Route, high_level_reason
from rnnscan.engine.costs.heuristics import heuristics
from rnnscan.engine.loops.stopping import stopping
from rnnscan.engine.plan.bound import bound_step, shared
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.primitive.scan import Scan
from rnnscan.engine.run import lax as run_by_lax
from rnnscan.engine.run import scan_rules as scan_rules
from rnnscan.engine.run.copies import bind_with_copies, constants_and_copies
from rnnscan.engine.run.segments import around, run_nested
from rnnscan.ir.program import Value
from rnnscan.ir.trace import trace
from rnnscan.memory import Memory
from rnnscan.scan_observer import inside_scan, steps_are_observed


def run_until(
    function: str,
    cell: Any,
    params: Any,
    carry: Any,
    xs: Any,
    cond_fun: Callable[[Any, Any], Any],
    *,
    max_steps: int,
    memory: Memory,
    kept: bool = False,
) -> tuple[Any, Any, Any, Any]:
    """Run a cell until `cond_fun(params, carry)` is false, or `max_steps` have run.

    Args:
        function: the public function, for messages.
        cell: the cell.
        params: its parameters.
        carry: the initial carry.
        xs: leaves `(max_steps, ...)`, or None.
        cond_fun: whether another step runs; it returns a boolean scalar.
        max_steps: the most steps.
        memory: the memory choice.
        kept: whether the trace is cached for later calls.

    Returns:
        The number of steps, the carry, ys, and whether the condition still holds after the last step.

    Raises:
        ValueError: if the step has side effects.
    """
    with inside_scan(), scope_of(cell):
        call = prepare(cell, params, carry, xs, length=max_steps, memory=memory, engine="auto")
        if call.info.has_side_effects:
            raise ValueError(
                f"{function}: a step must have no side effects, because the backward pass may run it again. Remove the "
                "callback, or use jax.debug."
            )
        if any(call.effects_of_rules):
            raise ValueError(
                f"{function}: derivative rules in a step must have no side effects; got a `jax.custom_vjp` or "
                "`jax.custom_jvp` whose rule has one. Remove it, or run the step with `rs.scan`."
            )
        holds = named_after(lambda carry: cond_fun(call.params, carry), cond_fun)
        traced = jax.make_jaxpr(holds)(call.carry)
        if once(traced.effects):
            raise ValueError(
                f"{function}: a condition must have no side effects, because it is asked again where a segment begins, "
                "and after the last step. Remove the callback, or use jax.debug."
            )
        if kept and (call.closes_over_arrays or _closes_over_arrays(traced, call.params)):
            raise ClosesOverArraysError
        reason = "a tool looks at its steps" if steps_are_observed() else high_level_reason(call)
        results = _run_plain(call, traced, reason) if reason else _run(ExecutionPlan.of(call, recomputes=True), traced)
        return *results, jax.core.eval_jaxpr(traced.jaxpr, traced.consts, *jax.tree.leaves(results[1]))[0]


def _run_plain(call: Call, condition: Any, reason: str) -> tuple[Any, Any, Any]:
    """What `_run` returns, by one plain `lax.scan` over the most steps, which skips those after the last one."""
    types = call.info.traced.out_avals[len(jax.tree.leaves(call.carry)) :]
    y = jax.tree.unflatten(jax.tree.structure(call.y), types)

    def wrap(step: Step) -> Step:
        holds = lambda carry: core.jaxpr_as_fun(condition)(*jax.tree.leaves(carry))[0]  # noqa: E731
        step_or_hold = stopping(call.wrap(step), holds, y)

        def run(carry: Any, x: Any) -> tuple[Any, Any]:
            carry, y, runs = step_or_hold(carry, x)
            return carry, (y, runs)

        return run

    choices = heuristics((call.params, call.carry, call.xs))
    plan = ExecutionPlan(replace(call, wrap=wrap), Route.plain(call, reason), choices)
    carry, (ys, runs) = run_by_lax.run(plan)
    return jnp.sum(runs, dtype=jnp.int32), carry, ys


def _closes_over_arrays(traced: Any, params: Any) -> bool:
    return not set(map(id, traced.consts)) <= set(map(id, jax.tree.leaves(params)))


def _run(plan: ExecutionPlan, condition: Any) -> tuple[Any, Any, Any]:
    """Run a plan while a condition holds, under the rule of memory. Its length is the most steps.

    Args:
        plan: the plan.
        condition: the jaxpr of `carry -> whether to run another step`, with its constants.

    Returns:
        The number of steps that ran, an int32; the carry; and ys, which are zero after the last step that ran.
    """
    call, memory = plan.call, plan.memory
    assert memory is not None
    leaves = jax.tree.leaves(call.carry)
    (sub_scan,) = memory.sub_scans(call.length)
    lengths = _multiples([call.length, *(size for size in sub_scan.segment or () if size < call.length)])
    xs = [_padded(leaf, lengths[0]) for leaf in jax.tree.leaves(call.xs)]
    types = [*leaves, *map(type_of_step, xs)]
    constants, copies, copied = constants_and_copies(plan.constants, types, plan.step, in_segments=len(lengths) > 1)
    count = vary(jnp.int32(0), varying(condition.out_avals[0]))
    step, scan = _counting_scan(plan, condition, jax.typeof(count), lengths)
    scan = replace(scan, copied=copied)
    (count, *final), ys = run_nested(
        lambda constants, carry, xs, _: bind_with_copies(constants, carry, xs, step, scan),
        around(scan),
        [*constants, *condition.consts, *copies],
        [count, *(leaves[index] for index in plan.step.changing)],
        xs,
        lengths[0],
        tuple(lengths[1:]),
    )
    return count, *call.results(plan.step.changing, final, [leaf[: call.length] for leaf in ys])


def _counting_scan(
    plan: ExecutionPlan, condition: Any, of_count: Any, lengths: Sequence[int]
) -> tuple[core.ClosedJaxpr, Scan]:
    """The scan over the steps of the shortest segment. The arrays that its condition reads are its last constants."""
    flat, is_padded = plan.step, lengths[0] > plan.call.length
    counting = trace(lambda count: [count + 1], of_count)
    (count,), new_count = counting.known, counting.stacked
    read = [Value(var.aval) for var in condition.jaxpr.constvars]
    program = replace(
        flat.program,
        equations=(*flat.program.equations, *counting.equations),
        invariant=(*flat.constants, *read),
        carry=(count, *flat.carry),
        new_carry=(*new_count, *flat.new_carry),
    )
    # With `jax.debug` callbacks, which nothing reads.
    scan_plan = plan.scan_of(replace(flat, program=program), lengths[-1])
    closed = bound_step(scan_plan, with_effects=True)
    unchanged = flat.constants[len(flat.constants) - len(flat.unchanged) :]
    carry = dict(zip([*flat.changing, *flat.unchanged], [*flat.carry, *unchanged], strict=True))

    def goes_on(*leaves: Any) -> list[Any]:
        values = dict(zip([*program.invariant, *program.carry], leaves, strict=True))
        with_consts = core.ClosedJaxpr(condition.jaxpr, [values[value] for value in read])
        (holds,) = core.jaxpr_as_fun(with_consts)(*(values[carry[index]] for index in sorted(carry)))
        return [holds & (values[count] < plan.call.length) if is_padded else holds]

    types = (value.aval for value in (*program.invariant, *program.carry))
    return closed, replace(scan_plan.scan, condition=shared(jax.make_jaxpr(goes_on)(*types)))


def _multiples(sizes: Sequence[int]) -> list[int]:
    """The sizes, the longest first, each rounded up to a multiple of the next."""
    *longer, shortest = sizes
    rounded = [shortest]
    for size in reversed(longer):
        rounded.insert(0, -(-size // rounded[0]) * rounded[0])
    return rounded


def _padded(xs: Any, length: int) -> Any:
    """Inputs that repeat the last step, where the last segment is longer than the remaining steps."""
    return xs if xs.shape[0] == length else xs[jnp.minimum(jnp.arange(length), xs.shape[0] - 1)]
