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

from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.plan.bound import shared
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.primitive.scan import Scan, bind, reading
from rnnscan.ir.leaves import split_list, without_keys


# (carry, xs, length) -> (carry, ys)
Run: TypeAlias = Callable[[Any, Any, int], tuple[Any, Any]]
# (constants, carry, xs, length) -> (carry, ys)
RunScan: TypeAlias = Callable[[list[Any], list[Any], list[Any], int], tuple[list[Any], list[Any]]]
# (carry, xs, length=, segments=: lengths of nested segments, the longest first) -> (carry, ys)
RunSubScan: TypeAlias = Callable[..., tuple[Any, Any]]


def run_sub_scans(run: RunSubScan, plan: ExecutionPlan, carry: Any, xs: Any) -> tuple[Any, Any]:
    """Run a call as several scans, one after the other, each with its own segments.

    Args:
        run: runs one of them, in the order of the call.
        plan: the plan of the call.
        carry: the initial carry.
        xs: a pytree of leaves `(T, ...)`, or None.

    Returns:
        The final carry and the stacked y.
    """
    call, memory = plan.call, plan.memory
    assert memory is not None
    scans, done, stacks = memory.sub_scans(call.length), 0, list[Any]()
    if len(scans) == 1:  # The derivative of a slice copies.
        return run(carry, xs, length=call.length, segments=scans[0].segment or ())
    for scan in scans:
        first = call.length - done - scan.steps if call.reverse else done
        part = partial(lax.slice_in_dim, start_index=first, limit_index=first + scan.steps)
        carry, ys = run(carry, jax.tree.map(part, xs), length=scan.steps, segments=scan.segment or ())
        stacks.append(ys)
        done += scan.steps
    return carry, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(stacks[::-1] if call.reverse else stacks))


def around(scan: Scan) -> Scan:
    """The parameters of a scan around segments, from those of the scans of these. What a segment makes ends with it."""
    options = replace(scan.options, offload=(), kept=(), windows=None, residuals=None)
    return replace(scan, options=options, copied=())


def run_nested(
    run: RunScan,
    scan: Scan,
    constants: list[Any],
    carry: list[Any],
    xs: list[Any],
    length: int,
    segments: tuple[int, ...],
    copies: Sequence[Any] = (),
) -> tuple[list[Any], list[Any]]:
    """Run a scan over segments of a sequence, by scans whose steps are scans.

    A remainder is one shorter segment, the last to run.

    Args:
        run: runs one segment of the innermost kind.
        scan: the parameters of the scan around the segments. With a condition, the length is a multiple of each
            segment's. The values that its options keep come after the y of a segment, and are no results.
        constants: what all segments read. The condition reads the first ones, as many as `scan` says.
        carry: the initial carry.
        xs: leaves `(length, ...)`.
        length: number of steps.
        segments: lengths of the nested segments, the longest first; empty: one run of the whole.
        copies: those of constants, if the scan has any. The scan around the longest segments takes them.

    Returns:
        The final carry and the stacked y.
    """
    if not segments:
        return run(constants, carry, xs, length)
    size = min(segments[0], length)
    count, rest = divmod(length, size)
    if rest:

        def run_part(carry: list[Any], xs: list[Any], steps: int) -> tuple[list[Any], list[Any], Any]:
            return *run_nested(run, scan, constants, carry, xs, steps, segments, copies), ()

        carry, ys, _ = TimeLoop(length, length - rest, scan.reverse, shorter_first=False).run(run_part, carry, xs)
        return carry, ys
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
        condition = shared(reading(condition, types[: len(operands)], places))
    # Chunks of one segment: no two segments have their residuals at the same time.
    options = replace(scan.options, unroll=1, chunk=1, parallel=None, chooses_kept_values=False, whole=None)
    outer = Scan(len(constants), len(counted) + len(carry), count, scan.reverse, options, scan.copied, condition)
    results = bind([*operands, *stacks, *copies], shared(jax.make_jaxpr(run_segment)(*types)), outer)
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

    Returns:
        The final carry and the stacked y.
    """
    if not segments:
        return run(carry, xs, length)
    size, inner_segments = segments[0], segments[1:]

    def run_segment(carry: Any, xs: Any, length: int) -> tuple[Any, Any, Any]:
        run_inner = partial(run_segments, run, length=length, segments=inner_segments, reverse=reverse)
        # With barriers: XLA inlines a scan over one segment, and would then merge the second run with the first.
        leaves, restore = without_keys((carry, xs))
        return *jax.checkpoint(lambda leaves: run_inner(*restore(leaves)))(leaves), ()

    carry, ys, _ = TimeLoop(length, size, reverse, shorter_first=False).run(run_segment, carry, xs)
    return carry, ys
