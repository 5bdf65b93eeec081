"""The lax engine: one plain `lax.scan` over a checkpointed step. It is the reference for the fission engine."""

from typing import Any

import jax
from jax import lax

from rnnscan._step_wrappers import Length, Step, type_of_step
from rnnscan.engine.hoisted_step import hoist
from rnnscan.engine.plan import Plan
from rnnscan.engine.segments import run_sub_scans
from rnnscan.memory import checkpoint_policy
from rnnscan.naming import emitting


def run(plan: Plan) -> tuple[Any, Any]:
    """Run a plan under the rule of memory.

    Returns:
        The final carry and the stacked y.
    """
    call, memory = plan.call, plan.memory
    step = call.step

    def emitting_names(carry: Any, x: Any) -> tuple[Any, Any]:
        with emitting(plan.kept_names, call.names):
            return step(carry, x)

    emitting_step: Step = emitting_names

    if plan.route.hoists:
        emitting_step = hoist(emitting_step, call.carry, jax.tree.map(type_of_step, call.xs))

    def run_steps(carry: Any, xs: Any, length: Length) -> tuple[Any, Any]:
        # With inputs, `lax.scan` reads the length from them, which may be a symbolic dimension of `jax.export`.
        known = None if jax.tree.leaves(xs) else length
        return lax.scan(body, carry, xs, length=known, reverse=call.reverse, unroll=call.unroll)

    if memory is None:
        body = emitting_step
        return run_steps(call.carry, call.xs, call.length)
    # XLA merges nothing across the border of a loop, so no barriers are needed.
    body = jax.checkpoint(emitting_step, policy=checkpoint_policy(memory, call.names), prevent_cse=False)
    if memory.segment is None:  # Then the length may be a symbolic dimension.
        return run_steps(call.carry, call.xs, call.length)
    sub_scans = memory.sub_scans(call.length)
    return run_sub_scans(run_steps, call.carry, call.xs, sub_scans=sub_scans, reverse=call.reverse)
