"""Run a cell until a condition stops it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from rnnscan._util.sources import named_after, scope_of
from rnnscan._util.step_wrappers import Step, type_of_step
from rnnscan._util.zeros import zeros_of_value
from rnnscan.engine.cache.program_cache import ClosesOverArraysError
from rnnscan.engine.call.prepare import Call, prepare
from rnnscan.engine.call.route import Route, high_level_reason
from rnnscan.engine.costs.heuristics import heuristics
from rnnscan.engine.loops.sharded_rows import sharded_rows
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.plan.observing import inside_scan
from rnnscan.engine.run import lax
from rnnscan.engine.run.while_scan import Arguments, SegmentedWhileScan, Stop, WhileScan, differentiable
from rnnscan.memory import Memory


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
        if kept and (call.closes_over_arrays or _closes_over_arrays(traced, call.params)):
            raise ClosesOverArraysError
        reason = high_level_reason(call)
        results = _run_plain(call, traced, reason) if reason else _run(ExecutionPlan.of(call, recomputes=True), traced)
        return *results, jax.core.eval_jaxpr(traced.jaxpr, traced.consts, *jax.tree.leaves(results[1]))[0]


def _run_plain(call: Call, condition: Any, reason: str) -> tuple[Any, Any, Any]:
    """What `_run` returns, by one plain `lax.scan` over the most steps, which skips those after the last one."""

    def while_it_holds(step: Step) -> Step:
        def step_or_skip(carry: Any, x: Any) -> tuple[Any, Any]:
            (runs,) = core.jaxpr_as_fun(condition)(*jax.tree.leaves(carry))
            skip = lambda carry, _: (carry, jax.tree.map(zeros_of_value, call.y))  # noqa: E731
            carry, y = jax.lax.cond(runs, step, skip, carry, x)
            return carry, (y, runs)

        return step_or_skip

    skipping = replace(call, wrap=lambda step: while_it_holds(call.wrap(step)))
    choices = heuristics((call.params, call.carry, call.xs))
    carry, (ys, runs) = lax.run(ExecutionPlan(skipping, Route.plain(call, reason), choices))
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
    leaves, structure = jax.tree.flatten(call.carry)
    changing = plan.step.changing
    (sub_scan,) = memory.sub_scans(call.length)
    scan = _scan(plan, list(sub_scan.segment or ()))
    xs = [_padded(leaf, scan.length) for leaf in jax.tree.leaves(call.xs)]
    unchanged = [leaves[index] for index in plan.step.unchanged]
    cond_fun = _cond_fun(condition.jaxpr, changing, plan.step.unchanged)
    stop = Stop(jnp.asarray(call.length, jnp.int32), [*condition.consts, *unchanged])
    carry = [leaves[index] for index in changing]
    rows = sharded_rows([*leaves, *map(type_of_step, jax.tree.leaves(call.xs))], plan.constants)
    constants = plan.constants if rows is None else [rows.on_mesh(constant) for constant in plan.constants]
    results = differentiable(scan, cond_fun)(stop, Arguments(constants, carry, xs), [])
    whole = {**dict(enumerate(leaves)), **dict(zip(changing, results.carry, strict=True))}
    ys = [leaf[: call.length] for leaf in results.ys]
    return (
        results.count,
        jax.tree.unflatten(structure, whole.values()),
        jax.tree.unflatten(jax.tree.structure(call.y), ys),
    )


def _scan(plan: ExecutionPlan, segments: list[int]) -> WhileScan | SegmentedWhileScan:
    """The scan with its nested segments, the longest first."""
    sizes = [plan.call.length, *(size for size in segments if size < plan.call.length)]
    scan: WhileScan | SegmentedWhileScan = WhileScan(
        plan.scan(sizes[-1], keep_all_carries=True), prints=bool(plan.call.info.effects)
    )
    for size in reversed(sizes[:-1]):
        scan = SegmentedWhileScan(scan, -(-size // scan.length))
    return scan


def _cond_fun(
    jaxpr: Any, changing: tuple[int, ...], unchanged: tuple[int, ...]
) -> Callable[[list[Any], list[Any]], Any]:
    """The condition as a function of `(its constants and the unchanged carry leaves, the changing carry leaves)`."""

    def cond_fun(read: list[Any], carry: list[Any]) -> Any:
        consts, rest = read[: len(jaxpr.constvars)], read[len(jaxpr.constvars) :]
        leaves = {**dict(zip(unchanged, rest, strict=True)), **dict(zip(changing, carry, strict=True))}
        closed = core.ClosedJaxpr(jaxpr, consts)
        return core.jaxpr_as_fun(closed)(*(leaves[index] for index in range(len(leaves))))[0]

    return cond_fun


def _padded(xs: Any, length: int) -> Any:
    """Inputs that repeat the last step, where the last segment is longer than the remaining steps."""
    return xs if xs.shape[0] == length else xs[jnp.minimum(jnp.arange(length), xs.shape[0] - 1)]
