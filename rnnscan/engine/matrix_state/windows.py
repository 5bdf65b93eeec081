"""Run a sequence with matrix states window by window. Each window is a segment: it runs again on the backward pass."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from rnnscan.engine.fission.execute.forward import run_forward
from rnnscan.engine.fission.flat_step import FlatStep
from rnnscan.engine.fission.plan import ScanPlan
from rnnscan.engine.fission.program import Value
from rnnscan.engine.matrix_state.looped import looped
from rnnscan.engine.matrix_state.run import Window
from rnnscan.engine.plan import Plan, Windows
from rnnscan.engine.segments import run_segments
from rnnscan.memory import checkpoint_policy


# (plan, constants, carry, xs) -> (carry, ys, other stacks to return): runs a scan over other parts of the carry.
RunLoop = Callable[[ScanPlan, list[Any], list[Any], list[Any]], tuple[list[Any], list[Any], list[Any]]]


def run_windows(
    plan: Plan,
    windows: Windows,
    run_loop: RunLoop,
    constants: Sequence[Any],
    carry: list[Any],
    xs: list[Any],
) -> tuple[list[Any], list[Any]]:
    """Run a sequence, or a segment of it.

    Args:
        plan: its plan.
        windows: the lengths.
        run_loop: runs the scans over the other parts of the carry.
        constants: those of the step.
        carry: its carry.
        xs: its inputs.

    Returns:
        The final carry and the stacked y, with the other stacks of the scans after them.
    """
    call, memory, stages = plan.call, plan.memory, plan.found.stages
    assert memory is not None
    assert stages is not None
    policy: Callable[..., Any] | None = jax.checkpoint_policies.nothing_saveable
    labels: dict[Value, str] = {}
    if plan.keeps_names_of_windows:
        policy = checkpoint_policy(memory, call.names)
        pairs = zip(plan.step.kept, plan.step.kept_labels, strict=True)
        labels = {value: call.names.as_emitted(label) for value, label in pairs if isinstance(value, Value)}

    def run_in_chunks(
        constants: Sequence[Any], carry: list[Any], xs: list[Any], length: int
    ) -> tuple[list[Any], list[Any]]:
        others: list[Any] = []

        def scan(step: FlatStep, constants: Any, carry: Any, xs: Any, length: int) -> tuple[list[Any], list[Any]]:
            final, ys, more = run_loop(plan.scan_of(step, length), constants, carry, xs)
            others.extend(more)
            return final, ys

        rounds = plan.choices.linear == "associative"
        window = Window(stages, length, call.reverse, windows.chunk, rounds, scan, labels)
        final, ys = window.run(constants, carry, xs)
        return final, [*ys, *others]

    def run(carry: list[Any], xs: list[Any], length: int) -> tuple[list[Any], list[Any]]:
        in_chunks = partial(run_in_chunks, length=length)
        if not plan.loops_windows:
            return in_chunks(constants, carry, xs)
        return looped(partial(run_forward, plan.scan(length)), in_chunks)(constants, carry, xs)

    if plan.loops_windows:
        policy = None  # Their derivatives need their arguments only.
    segments = () if windows.steps is None else (windows.steps,)
    return run_segments(run, carry, xs, length=windows.length, segments=segments, reverse=call.reverse, policy=policy)
