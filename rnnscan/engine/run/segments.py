"""Segments: only the carry between them is kept. Each runs again on the backward pass.

A segment of the engine's scans is the step of a scan around it, which keeps nothing for its derivative. Plain loops run
in `jax.checkpoint`.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan.engine.analysis.leaves import split_list, without_keys
from rnnscan.engine.call.prepare import Call
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.primitive.scan import Scan, bind, reading
from rnnscan.memory import Memory


# (carry, xs, length) -> (carry, ys)
Run: TypeAlias = Callable[[Any, Any, int], tuple[Any, Any]]
# (constants, carry, xs, length) -> (carry, ys)
RunScan: TypeAlias = Callable[[list[Any], list[Any], list[Any], int], tuple[list[Any], list[Any]]]
# (carry, xs, length=, segments=: lengths of nested segments, the longest first) -> (carry, ys)
RunSubScan: TypeAlias = Callable[..., tuple[Any, Any]]


def run_sub_scans(run: RunSubScan, call: Call, memory: Memory, carry: Any, xs: Any) -> tuple[Any, Any]:
    """Run a call as several scans, one after the other, each with its own segments.

    Args:
        run: runs one of them, in the order of the call.
        call: the call.
        memory: the memory choice in force.
        carry: the initial carry.
        xs: a pytree of leaves `(T, ...)`, or None.

    Returns:
        The final carry and the stacked y.
    """
    runs = [
        (sub_scan.steps, partial(run, length=sub_scan.steps, segments=sub_scan.segment or ()))
        for sub_scan in memory.sub_scans(call.length)
    ]
    return _one_by_one(runs, carry, xs, reverse=call.reverse)


def run_nested(
    run: RunScan,
    scan: Scan,
    constants: list[Any],
    carry: list[Any],
    xs: list[Any],
    length: int,
    segments: tuple[int, ...],
) -> tuple[list[Any], list[Any]]:
    """Run a scan over segments of a sequence, by scans whose steps are scans.

    A remainder is one shorter segment, the last to run.

    Args:
        run: runs one segment of the innermost kind.
        scan: the parameters of its scan. With a condition, the length is a multiple of each segment's.
        constants: what all segments read: the constants of that scan, and others after them.
        carry: the initial carry.
        xs: leaves `(length, ...)`.
        length: number of steps.
        segments: lengths of the nested segments, the longest first; empty: one run of the whole.

    Returns:
        The final carry and the stacked y.
    """
    if not segments:
        return run(constants, carry, xs, length)
    size = min(segments[0], length)
    count, rest = divmod(length, size)
    if rest:
        in_segments = partial(run_nested, run, scan, constants, segments=segments)
        runs = [(steps, partial(in_segments, length=steps)) for steps in (length - rest, rest)]
        return _one_by_one(runs, carry, xs, reverse=scan.reverse)
    stacks = [lax.reshape(leaf, (count, size, *leaf.shape[1:])) for leaf in xs]
    # A scan with a condition counts the segments in the first leaf of its carry.
    counted = [] if scan.condition is None else [lax.full_like(carry[0], 0)]
    operands = [*constants, *counted, *carry]

    def run_segment(*leaves: Any) -> list[Any]:
        own_constants, done, own_carry, own_xs = split_list(leaves, [len(constants), len(counted), len(carry)])
        final, ys = run_nested(run, scan, own_constants, own_carry, own_xs, size, segments[1:])
        return [*(number + 1 for number in done), *final, *ys]

    types = [*map(jax.typeof, operands), *(core.mapped_aval(count, 0, jax.typeof(leaf)) for leaf in stacks)]
    condition = scan.condition
    if condition is not None:
        places = [*range(scan.constants), *range(len(operands) - len(carry), len(operands))]
        condition = reading(condition, types[: len(operands)], places)
    # Chunks of one segment: no two segments have their residuals at the same time.
    options = replace(
        scan.options, unroll=1, chunk=1, parallel=None, offload=(), kept=(), chooses_kept_values=False, whole=None
    )
    outer = Scan(len(constants), len(counted) + len(carry), count, scan.reverse, options, condition=condition)
    results = bind([*operands, *stacks], jax.make_jaxpr(run_segment)(*types), outer)
    _, final, ys = split_list(results, [len(counted), len(carry)])
    return final, [lax.reshape(leaf, (count * size, *leaf.shape[2:])) for leaf in ys]


def run_segments(
    run: Run,
    carry: Any,
    xs: Any,
    length: int,
    segments: tuple[int, ...],
    *,
    reverse: bool,
    policy: Callable[..., Any] = jax.checkpoint_policies.nothing_saveable,
) -> tuple[Any, Any]:
    """Run a scan over segments of a sequence, each in `jax.checkpoint`.

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

    def run_segment(carry: Any, xs: Any, length: int) -> tuple[Any, Any, Any]:
        run_inner = partial(run_segments, run, length=length, segments=inner_segments, reverse=reverse, policy=policy)
        # With barriers: XLA inlines a scan over one segment, and would then merge the second run with the first.
        leaves, restore = without_keys((carry, xs))
        return *jax.checkpoint(lambda leaves: run_inner(*restore(leaves)), policy=policy)(leaves), ()

    carry, ys, _ = TimeLoop(length, size, reverse, shorter_first=False).run(run_segment, carry, xs)
    return carry, ys


def _one_by_one(
    runs: Sequence[tuple[int, Callable[[Any, Any], tuple[Any, Any]]]], carry: Any, xs: Any, *, reverse: bool
) -> tuple[Any, Any]:
    """Run parts of a sequence, one after the other.

    Args:
        runs: the steps of each part, and `(carry, xs) -> (carry, ys)`, in running order.
        carry: the initial carry.
        xs: a pytree of leaves `(T, ...)`, or None.
        reverse: from the last part to the first.

    Returns:
        The final carry and the stacked y.
    """
    if len(runs) == 1:  # The derivative of a slice copies.
        return runs[0][1](carry, xs)
    left, stacks = sum(steps for steps, _ in runs), list[Any]()
    total = left
    for steps, run in runs:
        first = left - steps if reverse else total - left
        part = partial(lax.slice_in_dim, start_index=first, limit_index=first + steps)
        carry, ys = run(carry, jax.tree.map(part, xs))
        stacks.append(ys)
        left -= steps
    return carry, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(reversed(stacks) if reverse else stacks))
