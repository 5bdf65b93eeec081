"""Run a plan by the fission engine.

The forward pass (run/forward.py) keeps the values that the rule of memory chooses. The backward pass (run/backward.py)
goes through the chunks from the end: it recomputes the other values, batched over a chunk, a small loop carries the
cotangent of the carry, and the gradients of the values that all steps share are summed after it, by products that
contract over the steps.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax

from rnnscan._util.step_wrappers import type_of_step
from rnnscan.engine.plan.bound import bound_step
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.run import scan_rules as scan_rules
from rnnscan.engine.run.copies import bind_with_copies, constants_and_copies
from rnnscan.engine.run.forward import run_and_count
from rnnscan.engine.run.matrix_windows import run_window
from rnnscan.engine.run.segments import around, run_nested, run_sub_scans
from rnnscan.engine.units.shard_units import UnitCell


def run(plan: ExecutionPlan) -> tuple[Any, Any]:
    """Run a plan under the rule of memory.

    Returns:
        The final carry and the stacked y, as `lax.scan`.
    """
    call, memory = plan.call, plan.memory
    assert memory is not None
    leaves, xs = jax.tree.leaves(call.carry), jax.tree.leaves(call.xs)
    # Segments run in a loop, and each has gradients of the constants: their total is rounded after all segments, and
    # taken over all rows.
    types, has_segments = [*leaves, *map(type_of_step, xs)], memory.segment is not None
    constants, copies, copied = constants_and_copies(plan.constants, types, plan.step, in_segments=has_segments)
    constants += copies

    def run_steps(constants: list[Any], carry: list[Any], xs: list[Any], length: int) -> tuple[Any, Any]:
        if has_segments and isinstance(call.cell, UnitCell):
            # Else XLA may shard the features of a segment, and gather them at each step.
            xs = [call.cell.mesh.gather_features(leaf) for leaf in xs]
        scan = plan.scan_to_run(length)
        parameters = replace(scan.scan, copied=copied)
        final, ys = bind_with_copies(constants, plan.ordered.of(carry), xs, bound_step(scan), parameters)
        return plan.ordered.undone(final), ys

    in_segments = partial(run_nested, run_steps, around(plan.scan_to_run(call.length).scan), constants)
    changing = plan.step.changing
    return call.results(changing, *run_sub_scans(in_segments, plan, [leaves[i] for i in changing], xs))


def run_counting(plan: ExecutionPlan) -> list[Any]:
    """Run a plan, and return the work of Newton's method as `run_and_count` does, in stacks of all steps."""
    call, scan = plan.call, around(plan.scan_to_run(plan.call.length).scan)
    leaves, xs = jax.tree.leaves(call.carry), jax.tree.leaves(call.xs)

    def run_window_of(constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
        final, stacks, counts = run_window(plan.states, run_and_count, constants, carry, xs, length)
        return final, [*stacks[: plan.step.y_size], *counts]

    def run_steps(constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
        window = plan.states.window(length)
        if window is not None:
            return run_nested(run_window_of, scan, constants, carry, xs, length, (window,))
        final, ys, counts = run_and_count(plan.scan(length), constants, carry, xs)
        return final, [*ys, *counts]

    in_segments = partial(run_nested, run_steps, scan, plan.constants)
    _, stacks = run_sub_scans(in_segments, plan, [leaves[index] for index in plan.step.changing], xs)
    counts: list[Any] = stacks[plan.step.y_size :]
    return counts
