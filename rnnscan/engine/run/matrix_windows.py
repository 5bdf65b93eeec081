"""Run a scan with matrix states window by window. Each window is a segment: it runs again on the backward pass."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jax.ad_checkpoint import checkpoint_name

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.forward import run_forward
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.engine.run.segments import run_segments


# (plan, constants, carry, xs) -> (carry, ys, other stacks to return): runs a scan over other parts of the carry.
RunLoop = Callable[[ScanPlan, list[Any], list[Any], list[Any]], tuple[list[Any], list[Any], list[Any]]]


def run_windows(
    plan: ScanPlan,
    length: int,
    run_loop: RunLoop,
    constants: Sequence[Any],
    carry: list[Any],
    xs: list[Any],
) -> tuple[list[Any], list[Any]]:
    """Run a sequence, or a segment of it.

    Args:
        plan: how the scan runs.
        length: its steps.
        run_loop: runs the scans over the other parts of the carry.
        constants: those of the step.
        carry: its carry.
        xs: its inputs.

    Returns:
        The final carry and the stacked y, with the other stacks of the scans after them.
    """
    parts, window = plan.matrix_split, plan.window(length)
    policy, names = plan.kept_in_windows
    assert window is not None

    def in_chunks(
        constants: Sequence[Any], carry: list[Any], xs: list[Any], length: int
    ) -> tuple[list[Any], list[Any]]:
        loop_stacks: list[Any] = []

        def scan(step: FlatStep, constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
            final, ys, more = run_loop(plan.of_part(step, length), constants, carry, xs)
            loop_stacks.extend(more)
            return final, ys

        invariant = invariant_values([parts], constants)
        fixed = [value for value in names if value in invariant]
        invariant |= {value: checkpoint_name(invariant[value], names[value]) for value in fixed}
        reverse, unroll = plan.scan.reverse, plan.scan.options.unroll
        runner = Runner(parts, invariant, reverse, unroll, scan=scan, labels=names)
        final, _, values = runner(length, dict(zip(parts.program.known, xs, strict=True)), carry)
        return final, [*map(values.stacked, parts.program.stacked), *loop_stacks]

    def by_a_loop(
        constants: Sequence[Any], carry: list[Any], xs: list[Any], length: int
    ) -> tuple[list[Any], list[Any]]:
        loop = partial(run_forward, plan.of_part(plan.step, length))
        run = differentiate_as(partial(in_chunks, length=length), loop, keeps_values=True)
        return run(constants, carry, xs)

    return run_segments(
        partial(by_a_loop if plan.loops_windows else in_chunks, constants),
        carry,
        xs,
        length=length,
        segments=(window,) if plan.keeps_carry(window, length) else (),
        reverse=plan.scan.reverse,
        policy=policy,
    )
