"""Run a small step, written out, by one plain `lax.scan` that JAX differentiates."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import Length
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
    step = named_after(partial(small.step.run, constants), call.cell)
    checkpointed = _checkpointed(step, small)

    def run_steps(carry: Any, xs: Any, length: Length) -> tuple[Any, Any]:
        return lax.scan(checkpointed, carry, xs, length=length, reverse=call.reverse, unroll=call.unroll)

    leaves, xs, changing = jax.tree.leaves(call.carry), jax.tree.leaves(call.xs), small.step.changing
    return call.results(changing, *run_sub_scans(run_steps, call, memory, [leaves[i] for i in changing], xs))


def _checkpointed(step: Any, small: SmallStep) -> Any:
    """The step, with what its derivative keeps.

    `jax.checkpoint` saves no complex value by a policy (`reduce_precision` refuses them in jax 0.10.2 and 0.12.0).
    Without it, JAX keeps views too.
    """
    values = [atom for equation in small.step.program.equations for atom in equation.outputs]
    if small.keeps_all and any(jnp.issubdtype(atom.dtype, jnp.complexfloating) for atom in values):
        return step
    # XLA merges nothing across the border of a loop, so no barriers are needed.
    return jax.checkpoint(step, policy=small.policy, prevent_cse=False)
