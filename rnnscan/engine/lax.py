"""The lax engine: one plain `lax.scan` over a checkpointed step.

The reference that other engines are checked against.
"""

from typing import Any

import jax
from jax import lax

from rnnscan._step_wrappers import Length, Step
from rnnscan.engine.segments import run_parts
from rnnscan.memory import Memory, checkpoint_policy, kept_names
from rnnscan.naming import Names, emitting


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

    def run_steps(carry: Any, xs: Any, length: Length) -> tuple[Any, Any]:
        known = None if jax.tree.leaves(xs) else length
        return lax.scan(body, carry, xs, length=known, reverse=reverse, unroll=unroll)

    if memory is None:
        body = emitting_step
        return run_steps(carry, xs, length)
    # Inside a loop nothing can be merged across its border, so the barriers against it are not needed.
    body = jax.checkpoint(emitting_step, policy=checkpoint_policy(memory, names), prevent_cse=False)
    if memory.segment is None:  # Then the length may be a symbolic dimension.
        return run_steps(carry, xs, length)
    return run_parts(run_steps, carry, xs, parts=memory.sub_scans(length), reverse=reverse)
