"""Matrix states in chunkwise form, window by window. A window is the step of a scan around it, as a segment is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.engine.plan.bound import bound_step
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive.scan import bind
from rnnscan.engine.run.forward import run_forward
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.engine.run.segments import run_nested
from rnnscan.ir.leaves import split_list


# (plan, constants, carry, xs) -> (carry, ys, other stacks to return): runs a scan over other parts of the carry.
RunLoop: TypeAlias = Callable[[ScanPlan, list[Any], list[Any], list[Any]], tuple[list[Any], list[Any], list[Any]]]


def run_windows(plan: ScanPlan, operands: Sequence[Any]) -> list[Any]:
    """The final carry and ys of a scan. The scan over its windows keeps their named values.

    Args:
        plan: how the scan runs.
        operands: its constants, carry and xs, and the copies of constants.
    """
    scan, size = plan.scan, plan.window(plan.scan.length)
    constants, carry, xs, copies = split_list(operands, [scan.constants, scan.carry, len(plan.step.x)])
    assert size is not None

    def in_chunks(constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
        return run_window(plan, _bind_loop, constants, carry, xs, length)[:2]

    def by_a_loop(constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
        loop = partial(run_forward, plan.of_part(plan.step, length))
        result: tuple[list[Any], list[Any]] = differentiate_as(
            partial(in_chunks, length=length), loop, keeps_values=True
        )(constants, carry, xs)
        return result

    run, segments = by_a_loop if plan.loops_windows else in_chunks, (size,) if plan.keeps_carry(size) else ()
    outer = replace(scan, options=replace(scan.options, windows=None))
    # A window without a scan around it needs no copies: the scan of which it is a step adds up the gradients.
    final, ys = run_nested(run, outer, constants, carry, xs, scan.length, segments, copies)
    return [*final, *ys[: plan.step.y_size]]


def run_window(
    plan: ScanPlan, run_loop: RunLoop, constants: Sequence[Any], carry: list[Any], xs: list[Any], length: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """Run a window in chunkwise form.

    Args:
        plan: how the scan runs.
        run_loop: runs the scans over the other parts of the carry.
        constants: those of the step.
        carry: its carry.
        xs: its inputs.
        length: the steps of the window.

    Returns:
        The final carry, the stacked y and kept values, and the other stacks of the scans.
    """
    parts, more = plan.matrix_split, list[Any]()

    def scan(step: FlatStep, constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
        final, ys, others = run_loop(plan.of_part(step, length), constants, carry, xs)
        more.extend(others)
        return final, ys

    invariant = invariant_values([parts], constants)
    runner = Runner(parts, invariant, plan.scan.reverse, plan.scan.options.unroll, scan=scan)
    final, _, values = runner(length, dict(zip(parts.program.known, xs, strict=True)), carry)
    y, kept = split_list(parts.program.stacked, [plan.step.y_size])
    # Of a kept value that is the same at every step a window keeps one, without an axis of steps.
    return final, [*map(values.stacked, y), *map(values.read, kept)], more


def _bind_loop(plan: ScanPlan, constants: Any, carry: Any, xs: Any) -> tuple[list[Any], list[Any], list[Any]]:
    final, ys = split_list(bind([*constants, *carry, *xs], bound_step(plan), plan.scan), [plan.scan.carry])
    return final, ys, []
