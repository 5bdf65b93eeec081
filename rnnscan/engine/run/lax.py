"""The lax engine: one plain `lax.scan` over a checkpointed step, which JAX differentiates.

It is the reference for the fission engine, and runs small steps that are written as one kernel.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import Step
from rnnscan.engine.one_kernel.small_step import SmallStep
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.run.segments import around, run_nested, run_segments, run_sub_scans
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


def run_small(small: SmallStep, plan: ExecutionPlan) -> tuple[Any, Any]:
    """Run a plan whose loop is one kernel.

    Returns:
        The final carry and the stacked y, as `lax.scan`.
    """
    call, constants = plan.call, plan.constants

    def run_steps(constants: list[Any], carry: list[Any], xs: list[Any], length: int) -> tuple[list[Any], list[Any]]:
        step = _checkpointed(named_after(partial(small.step.run, constants), call.cell), small)
        final, ys = lax.scan(step, carry, xs, length=length, reverse=call.reverse, unroll=call.unroll)
        return final, ys

    leaves, xs, changing = jax.tree.leaves(call.carry), jax.tree.leaves(call.xs), small.step.changing
    in_segments = partial(run_nested, run_steps, around(plan.scan_of(small.step, call.length).scan), constants)
    return call.results(changing, *run_sub_scans(in_segments, plan, [leaves[i] for i in changing], xs))


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
