"""Segments: only the carry between them is kept. Each runs again on the backward pass.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan._util.step_wrappers import Length
from rnnscan.engine.analysis.keys import without_keys
from rnnscan.engine.call.prepare import Call
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.memory import Memory


# (carry, xs, length) -> (carry, ys)
Run: TypeAlias = Callable[[Any, Any, Length], tuple[Any, Any]]


def run_sub_scans(run: Run, call: Call, memory: Memory, carry: Any, xs: Any) -> tuple[Any, Any]:
    """Run a call as several scans, one after the other, each with its own segments.

    Args:
        run: runs one segment of the innermost kind, in the order of the call.
        call: the call.
        memory: the memory choice in force.
        carry: the initial carry.
        xs: a pytree of leaves `(T, ...)`, or None.

    Returns:
        The final carry and the stacked y.
    """
    sub_scans, reverse = memory.sub_scans(call.length), call.reverse
    if len(sub_scans) == 1:
        (sub_scan,) = sub_scans
        return run_segments(run, carry, xs, length=sub_scan.steps, segments=sub_scan.segment or (), reverse=reverse)
    total, done = sum(sub_scan.steps for sub_scan in sub_scans), 0
    stacks = []
    for sub_scan in sub_scans:
        start = total - done - sub_scan.steps if reverse else done
        cut = jax.tree.map(lambda leaf, start=start, steps=sub_scan.steps: leaf[start : start + steps], xs)
        carry, ys = run_segments(
            run, carry, cut, length=sub_scan.steps, segments=sub_scan.segment or (), reverse=reverse
        )
        stacks.append(ys)
        done += sub_scan.steps
    return carry, _joined(stacks, reverse=reverse)


def run_segments(
    run: Run,
    carry: Any,
    xs: Any,
    *,
    length: Length,
    segments: tuple[int, ...],
    reverse: bool,
    policy: Callable[..., Any] = jax.checkpoint_policies.nothing_saveable,
) -> tuple[Any, Any]:
    """Run a scan over segments of a sequence.

    A remainder is one shorter segment, the last to run.

    Args:
        run: runs one segment of the innermost kind.
        carry: the initial carry.
        xs: a pytree of leaves `(length, ...)`, or None.
        length: number of steps.
        segments: lengths of the nested segments, the longest first; empty: one run of the whole.
        reverse: from the last segment to the first; `run` must do the same.
        policy: of `jax.checkpoint`, the values that a segment keeps besides its arguments.

    Returns:
        The final carry and the stacked y.
    """
    if not segments:
        return run(carry, xs, length)
    size, inner_segments = segments[0], segments[1:]

    def run_segment(carry: Any, xs: Any, length: Length) -> tuple[Any, Any]:
        run_inner = partial(run_segments, run, length=length, segments=inner_segments, reverse=reverse, policy=policy)
        # With barriers: XLA inlines a scan over one segment, and would then merge the second run with the first.
        leaves, restore = without_keys((carry, xs))
        return jax.checkpoint(lambda leaves: run_inner(*restore(leaves)), policy=policy)(leaves)

    if not length:
        return run_segment(carry, xs, length)

    def body(carry: Any, xs: Any, length: int) -> tuple[Any, Any, Any]:
        return *run_segment(carry, xs, length), ()

    carry, ys, _ = TimeLoop(length, size, reverse, shorter_first=False).run(body, carry, xs)
    return carry, ys


def _joined(stacks: Sequence[Any], *, reverse: bool) -> Any:
    """Concatenate stacks of y, given in running order, in the order of time."""
    if len(stacks) == 1:
        return stacks[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(reversed(stacks) if reverse else stacks))
