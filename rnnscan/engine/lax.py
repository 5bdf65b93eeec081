"""The lax engine: one plain `lax.scan` over a checkpointed step.

The reference that other engines are checked against, and the one that works in forward mode.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.memory import Memory, checkpoint_policy, kept_names
from rnnscan.naming import Names, emitting
from rnnscan.sequence import Length, Step


def run(
    step: Step,
    carry: Any,
    xs: Any,
    *,
    length: Length,
    reverse: bool,
    unroll: int | bool,
    memory: Memory | None,
    names: Names,
) -> tuple[Any, Any]:
    """Run a step over time under the rule of memory.

    Args:
        step: `(carry, x) -> (carry, y)`; what it closes over gets gradients.
        carry: the initial carry, of the types that the step returns.
        xs: a pytree of leaves `(length, ...)`, or None.
        length: number of steps; `lax.scan` is told it only where there is no input to take it from, so that it may be
            a symbolic dimension of `jax.export`.
        reverse: run from the last step to the first.
        unroll: as in `lax.scan`.
        memory: the memory choice, or None for plain autodiff.
        names: the names that the step emits.

    Returns:
        The final carry and the stacked y, as `lax.scan`.
    """
    kept = frozenset() if memory is None else kept_names(memory, names)

    def emitting_step(carry: Any, x: Any) -> tuple[Any, Any]:
        with emitting(kept, names):
            return step(carry, x)

    if memory is None:
        return _scan(emitting_step, carry, xs, length=length, reverse=reverse, unroll=unroll)

    # Inside a scan nothing can be merged across the loop's border, so the barriers against it are not needed.
    checkpointed = jax.checkpoint(emitting_step, policy=checkpoint_policy(memory, names), prevent_cse=False)
    return _run_segments(
        checkpointed, carry, xs, length=length, segments=memory.segments(length), reverse=reverse, unroll=unroll
    )


def _run_segments(
    step: Step, carry: Any, xs: Any, *, length: Length, segments: tuple[int, ...], reverse: bool, unroll: int | bool
) -> tuple[Any, Any]:
    """A scan over segments of a scan over steps, of which only the carries between segments are kept.

    A length that the segment does not divide leaves one shorter segment, the last in the order of the steps.
    """
    if not segments:
        return _scan(step, carry, xs, length=length, reverse=reverse, unroll=unroll)
    size, inner_segments = segments[0], segments[1:]

    def run_segment(carry: Any, xs: Any, length: Length) -> tuple[Any, Any]:
        run_inner = partial(_run_segments, step, length=length, segments=inner_segments, reverse=reverse, unroll=unroll)
        # With the barriers: XLA dissolves a scan over one segment, and would then merge the second run with the first.
        return jax.checkpoint(run_inner, policy=jax.checkpoint_policies.nothing_saveable)(carry, xs)

    count, rest = divmod(length, size)
    whole = slice(rest, None) if reverse else slice(0, count * size)
    shorter = slice(0, rest) if reverse else slice(count * size, None)
    parts = []
    if count:
        cut = jax.tree.map(lambda leaf: leaf[whole].reshape(count, size, *leaf.shape[1:]), xs)
        carry, ys = lax.scan(lambda carry, xs: run_segment(carry, xs, size), carry, cut, length=count, reverse=reverse)
        parts.append(jax.tree.map(lambda leaf: leaf.reshape(count * size, *leaf.shape[2:]), ys))
    if rest or not count:
        carry, ys = run_segment(carry, jax.tree.map(lambda leaf: leaf[shorter], xs), rest)
        parts.append(ys)
    if len(parts) == 1:
        return carry, parts[0]
    ordered = reversed(parts) if reverse else parts
    return carry, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *ordered)


def _scan(step: Step, carry: Any, xs: Any, *, length: Length, reverse: bool, unroll: int | bool) -> tuple[Any, Any]:
    known = length if not jax.tree.leaves(xs) else None
    return lax.scan(step, carry, xs, length=known, reverse=reverse, unroll=unroll)
