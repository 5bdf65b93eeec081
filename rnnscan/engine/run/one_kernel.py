"""Run a small step, written out, by one plain `lax.scan` that JAX differentiates."""

from functools import partial
from typing import Any

import jax
from jax import lax

from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import Length
from rnnscan.engine.analysis.leaves import replace_at
from rnnscan.engine.one_kernel.small_step import SmallStep
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.run.segments import run_sub_scans


def run(small: SmallStep, plan: ExecutionPlan) -> tuple[Any, Any]:
    """Run a plan whose loop is one kernel.

    Returns:
        The final carry and the stacked y, as `lax.scan`.
    """
    call, memory, constants = plan.call, plan.memory, plan.constants
    assert memory is not None
    leaves, structure = jax.tree.flatten(call.carry)
    step = named_after(partial(small.step.run, constants), call.cell)
    # XLA merges nothing across the border of a loop, so no barriers are needed.
    checkpointed = jax.checkpoint(step, policy=small.policy, prevent_cse=False)

    def run_steps(carry: Any, xs: Any, length: Length) -> tuple[Any, Any]:
        return lax.scan(checkpointed, carry, xs, length=length, reverse=call.reverse, unroll=call.unroll)

    changing = [leaves[index] for index in small.step.changing]
    sub_scans = memory.sub_scans(call.length)
    final, ys = run_sub_scans(run_steps, changing, jax.tree.leaves(call.xs), sub_scans=sub_scans, reverse=call.reverse)
    carry = replace_at(leaves, small.step.changing, final)
    return jax.tree.unflatten(structure, carry), jax.tree.unflatten(jax.tree.structure(call.y), ys)
