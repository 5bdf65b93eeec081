"""The time of a step of a plan by the engine's cost model: both passes, recomputation, offloading, iterations."""

from collections.abc import Callable, Collection
from functools import partial
from math import prod
from typing import Any

import jax

from rnnscan._step_wrappers import type_of_step
from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.costs.machine import Machine
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.ir.dataflow import determined
from rnnscan.ir.jaxprs import all_equations
from rnnscan.ir.opened import opened
from rnnscan.ir.trace import trace


# A link to the host moves 50 GB/s, by data sheets.
_NS_PER_MOVED_BYTE = 0.02
# The iterations of Newton's method for a chunk. Trained cells take 3 to 5, and 15 to 20 with the diagonal alone.
_ITERATIONS = {"elementwise": 4, "dense": 16}


def forward_time(plan: ExecutionPlan) -> float:
    """Estimate the time of one step of the cell, in nanoseconds."""
    return _time(plan.choices.machine, plan.call.cell, *_arguments(plan))


def training_time(plan: ExecutionPlan, kept: Collection[str]) -> float:
    """Estimate the time of one step of the cell, its backward pass, and recomputation, in nanoseconds.

    Args:
        plan: the plan.
        kept: the names to keep; everything else is recomputed.
    """
    step = jax.checkpoint(plan.call.cell, policy=jax.checkpoint_policies.save_only_these_names(*kept))

    def loss(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(step(*arguments))
        return sum(leaf.sum() for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating))

    gradient = jax.grad(loss, argnums=(0, 1, 2), allow_int=True)
    return _time(plan.choices.machine, gradient, *_arguments(plan))


def offloading_time(plan: ExecutionPlan, offloaded: Collection[str]) -> float:
    """Estimate the time of moving named values of one step to host memory and back, in nanoseconds."""
    moved = 0
    for equation in all_equations(jax.make_jaxpr(plan.call.cell)(*_arguments(plan)).jaxpr):
        primitive, params = opened(equation)
        if primitive.name == "name" and params["name"] in offloaded:
            moved += prod(equation.outvars[0].aval.shape) * equation.outvars[0].aval.dtype.itemsize
    return 2 * _NS_PER_MOVED_BYTE * moved


def solving_time(plan: ExecutionPlan) -> float:
    """Estimate the time of one step of the iterations that solve a plan's loops, as many as are usual."""
    loops = [loop.recurrence for loop in plan.newton_loops]
    return sum(_usual_iterations(loop) * iteration_time(plan.choices.machine, loop) for loop in loops)


def _usual_iterations(recurrence: Recurrence) -> int:
    assert recurrence.newton is not None
    return min(_ITERATIONS[recurrence.kind], recurrence.newton.max_iterations)


def iteration_time(machine: Machine, recurrence: Recurrence) -> float:
    """Estimate the time of one step of an iteration, in nanoseconds.

    It evaluates the loop with its Jacobian, and runs a linear recurrence as an associative scan, which composes two
    steps about twice as often as there are steps.
    """
    size = len(recurrence.cycle.leaves)
    compose = machine.ns_per_element * 2 * (size**3 + size**2) * prod(recurrence.cycle.leaves[0].shape)
    jacobian = partial(recurrence.cycle.with_jacobian, of_values=True)
    return _time(machine, jacobian, *_types(recurrence)) + 2 * compose


def loop_time(machine: Machine, recurrence: Recurrence) -> float:
    """Estimate the time of one step of a loop that is solved, where it runs step by step, in nanoseconds."""
    return _time(machine, recurrence.cycle.step, *_types(recurrence))


def _types(recurrence: Recurrence) -> tuple[list[Any], list[Any]]:
    leaves, reads = (
        [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        for values in (recurrence.cycle.leaves, recurrence.cycle.reads)
    )
    return leaves, reads


def _arguments(plan: ExecutionPlan) -> tuple[Any, Any, Any]:
    call = plan.call
    return call.params, call.carry, jax.tree.map(type_of_step, call.inputs)


def _time(machine: Machine, function: Callable[..., Any], *arguments: Any) -> float:
    """The time of a function whose first argument is the same at every step."""
    leaves, tree = jax.tree.flatten(arguments)
    flat = trace(lambda *leaves: jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves))), *leaves)
    fixed = determined(flat.equations, flat.known[: len(jax.tree.leaves(arguments[0]))])
    return machine.estimate(flat.equations, fixed).nanoseconds
