"""The time of a step of a plan by the engine's cost model: both passes, recomputation and offloading."""

from collections.abc import Collection
from math import prod
from typing import Any

import jax

from rnnscan._util.step_wrappers import type_of_step
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.ir.jaxprs import all_equations
from rnnscan.ir.opened import opened
from rnnscan.planning.estimate import estimate_function


# A link to the host moves 50 GB/s, by data sheets.
_NS_PER_MOVED_BYTE = 0.02


def forward_time(plan: ExecutionPlan) -> float:
    """Estimate the time of one step of the cell, in nanoseconds."""
    return estimate_function(plan.choices.machine, plan.call.cell, *_arguments(plan)).nanoseconds


def training_time(plan: ExecutionPlan, kept: Collection[str]) -> float:
    """Estimate the time of one step of the cell, its backward pass, and recomputation, in nanoseconds.

    Args:
        plan: the plan.
        kept: the names to keep; everything else is recomputed.
    """
    step = jax.checkpoint(plan.call.cell, policy=jax.checkpoint_policies.save_only_these_names(*kept))

    def loss(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(step(*arguments))
        return sum((leaf.sum() for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)), 0.0)

    gradient = jax.grad(loss, argnums=(0, 1, 2), allow_int=True)
    return estimate_function(plan.choices.machine, gradient, *_arguments(plan)).nanoseconds


def offloading_time(plan: ExecutionPlan, offloaded: Collection[str]) -> float:
    """Estimate the time of moving named values of one step to host memory and back, in nanoseconds."""
    moved = 0
    for equation in all_equations(jax.make_jaxpr(plan.call.cell)(*_arguments(plan)).jaxpr):
        primitive, params = opened(equation)
        if primitive.name == "name" and params["name"] in offloaded:
            moved += prod(equation.outvars[0].aval.shape) * equation.outvars[0].aval.dtype.itemsize
    return 2 * _NS_PER_MOVED_BYTE * moved


def _arguments(plan: ExecutionPlan) -> tuple[Any, Any, Any]:
    call = plan.call
    return call.params, call.carry, jax.tree.map(type_of_step, call.inputs)
