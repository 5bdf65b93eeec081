"""Run a sequence with matrix states window by window. Each window is a segment: it runs again on the backward pass."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from rnnscan.engine.analysis.flat_step import SAVED_BY_POLICY, FlatStep
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.forward import run_forward
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.engine.run.segments import run_segments
from rnnscan.ir.program import Value
from rnnscan.memory import checkpoint_policy


# (plan, constants, carry, xs) -> (carry, ys, other stacks to return): runs a scan over other parts of the carry.
RunLoop = Callable[[ScanPlan, list[Any], list[Any], list[Any]], tuple[list[Any], list[Any], list[Any]]]


def run_windows(
    plan: ExecutionPlan,
    length: int,
    window: int,
    run_loop: RunLoop,
    constants: Sequence[Any],
    carry: list[Any],
    xs: list[Any],
) -> tuple[list[Any], list[Any]]:
    """Run a sequence, or a segment of it.

    Args:
        plan: its plan.
        length: its steps.
        window: the steps of a window.
        run_loop: runs the scans over the other parts of the carry.
        constants: those of the step.
        carry: its carry.
        xs: its inputs.

    Returns:
        The final carry and the stacked y, with the other stacks of the scans after them.
    """
    parts = plan.matrix_split
    policy_of_names, labels = _kept(plan)

    def in_chunks(
        constants: Sequence[Any], carry: list[Any], xs: list[Any], length: int
    ) -> tuple[list[Any], list[Any]]:
        loop_stacks: list[Any] = []

        def scan(step: FlatStep, constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
            final, ys, more = run_loop(plan.scan_of(step, length), constants, carry, xs)
            loop_stacks.extend(more)
            return final, ys

        invariant = invariant_values([parts], constants)
        fixed = [value for value in labels if value in invariant]
        invariant |= {value: checkpoint_name(invariant[value], labels[value]) for value in fixed}
        runner = Runner(parts, invariant, plan.call.reverse, plan.call.unroll, scan=scan, labels=labels)
        final, _, values = runner(length, dict(zip(parts.program.known, xs, strict=True)), carry)
        return final, [*map(values.stacked, parts.program.stacked), *loop_stacks]

    def by_a_loop(
        constants: Sequence[Any], carry: list[Any], xs: list[Any], length: int
    ) -> tuple[list[Any], list[Any]]:
        reference, loop = partial(in_chunks, length=length), partial(run_forward, plan.scan(length))
        run = differentiate_as(reference, loop, keeps_values=True)
        return run(constants, carry, xs)

    return run_segments(
        partial(by_a_loop if plan.loops_windows else in_chunks, constants),
        carry,
        xs,
        length=length,
        segments=(window,) if plan.keeps_carry_of_windows(window, length) else (),
        reverse=plan.call.reverse,
        policy=policy_of_names,
    )


def _kept(plan: ExecutionPlan) -> tuple[Callable[..., Any], dict[Value, str]]:
    """The policy of `jax.checkpoint` around a window in chunkwise form, and the names that it emits, by value."""
    if not plan.keeps_names_of_windows:
        return jax.checkpoint_policies.nothing_saveable, {}
    memory, names = plan.memory, plan.call.names
    assert memory is not None
    pairs = zip(plan.step.kept, plan.step.kept_labels, strict=True)
    # A value that a policy saves has no name that a checkpoint around the window could see.
    named = ((value, label) for value, label in pairs if isinstance(value, Value) and label != SAVED_BY_POLICY)
    labels = {value: names.as_emitted(label) for value, label in named}
    return checkpoint_policy(memory, names), labels
