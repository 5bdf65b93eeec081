"""The lax engine: one plain `lax.scan` over a checkpointed step, which JAX differentiates.

It is the reference for the fission engine.
"""

from functools import partial
from typing import Any

import jax
from jax import lax

from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import Step
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.run.segments import run_segments, run_sub_scans
from rnnscan.memory import checkpoint_policy
from rnnscan.naming import emitting


def run(plan: ExecutionPlan) -> tuple[Any, Any]:
    """Run a plan under the rule of memory.

    Returns:
        The final carry and the stacked y.
    """
    call, memory = plan.call, plan.memory
    step = call.step_to_run

    def emitting_names(carry: Any, x: Any) -> tuple[Any, Any]:
        with emitting(plan.kept_names, call.names):
            return step(carry, x)

    # With inputs, `lax.scan` reads the length from them, which may be a symbolic dimension of `jax.export`.
    known = None if jax.tree.leaves(call.xs) else call.length
    scan = partial(lax.scan, reverse=call.reverse, unroll=call.unroll)
    whole: Step = named_after(emitting_names, call.cell)
    if memory is not None:
        # XLA merges nothing across the border of a loop, so no barriers are needed.
        whole = jax.checkpoint(whole, policy=checkpoint_policy(memory, call.names), prevent_cse=False)
    if memory is None or memory.segment is None:  # Then the length may be a symbolic dimension.
        return scan(whole, call.carry, call.xs, length=known)
    in_segments = partial(run_segments, partial(scan, whole), reverse=call.reverse)
    return run_sub_scans(in_segments, plan, call.carry, call.xs)
