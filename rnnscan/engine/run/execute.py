"""Run a call: check it, plan it and run the plan; outside of `jax.jit` by a cached program."""

from typing import Any

import jax

from rnnscan._util.step_wrappers import hold_last_valid, type_of_step
from rnnscan.engine.cache.program_cache import ClosesOverArraysError, run_compiled
from rnnscan.engine.call.concrete import run_on_values, runs_on_values
from rnnscan.engine.call.prepare import prepare
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.run import fission as fission
from rnnscan.engine.run import lax
from rnnscan.random_choices import warned_if_random
from rnnscan.scan_observer import inside_scan, observe_plan, plans_are_observed


def run_call(cell: Any, arrays: dict[str, Any], options: dict[str, Any], length: Any) -> tuple[Any, Any]:
    """Run a call of `scan`.

    Args:
        cell: the cell.
        arrays: the arguments of `prepare` that hold arrays, by name.
        options: the others.
        length: the number of steps, which may be a symbolic dimension.

    Returns:
        The final carry and the stacked y.
    """
    if runs_on_values(length) and not plans_are_observed():
        return run_on_values(cell, **arrays, **options)
    results: tuple[Any, Any] = run_compiled(_run, cell, arrays, options)
    return results


def _run(cell: Any, *, params: Any, carry: Any, xs: Any, kept: bool = False, **options: Any) -> tuple[Any, Any]:
    """Prepare a call, plan it and run the plan. `kept`: the trace is cached for later calls."""
    with inside_scan():
        call = prepare(cell, params, carry, xs, **options)
        if kept and call.closes_over_arrays:
            raise ClosesOverArraysError
        plan = ExecutionPlan.of(call)
        carry, ys = _execute(plan)
        if options.get("key") is None:
            # The cell and the parameters of the caller: those of the call may be cut into units.
            x = jax.tree.map(type_of_step, call.inputs)
            carry, ys = warned_if_random((carry, ys), "scan", cell, params, call.carry, x)
    observe_plan(plan, options, ys)
    return carry, ys


def _execute(plan: ExecutionPlan) -> tuple[Any, Any]:
    call = plan.call
    run = fission.run if plan.route.engine == "fission" else lax.run
    carry, ys = run(plan)
    if call.valid is not None and call.padding == "hold":
        ys = hold_last_valid(ys, call.valid, reverse=call.reverse)
    return carry, ys
