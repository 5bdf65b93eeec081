"""Where the time of a step goes, by the cost model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import fsum, prod
from typing import Any

import jax

from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.analysis.split import Split
from rnnscan.engine.costs.machine import Cost, Machine
from rnnscan.engine.plan.execution_plan import ExecutionPlan, NewtonLoop
from rnnscan.engine.plan.schedule import Schedule
from rnnscan.ir.program import determined
from rnnscan.ir.trace import trace


# The iterations of Newton's method for a chunk. Trained cells take 3 to 5, and 15 to 20 with the diagonal alone.
_ITERATIONS = {"elementwise": 4, "dense": 16}


@dataclass(frozen=True)
class PartCost:
    """The estimated cost of a part of the work, for each step.

    Attributes:
        direction: "forward" or "backward".
        part: a loop, such as "in loop 1", or "at once": the work that is batched over steps.
        seconds: the estimated time.
        flops: the operations of products, and one for each element of other results.
        bytes: the bytes of operands and results. Those between fused operations count too.
    """

    direction: str
    part: str
    seconds: float
    flops: int
    bytes: int


def estimate_parts(plan: ExecutionPlan, backward: Schedule | None) -> tuple[PartCost, ...]:
    """The estimated costs of a plan's loops and of its batched work, forward and backward.

    The backward pass is left out where the lax engine runs it. Nothing is estimated of Newton's method.

    Args:
        plan: the plan.
        backward: how its backward pass runs, if that is known.
    """
    machine, window = plan.choices.machine, plan.states.window(plan.call.length)
    if plan.call.parallel is not None or (window is not None and not plan.states.loops_forward):
        return ()
    scan = plan.scan(plan.call.length)
    if scan.kernel is not None:
        return (PartCost("forward", "in one kernel", 1e-9 * scan.kernel.nanoseconds, 0, 0),)
    if plan.route.engine != "fission":
        program = scan.step.program
        return (_part("forward", "in one loop", machine.estimate(program.equations)),)
    forward = tuple(_parts("forward", scan.written, scan.chunk, machine))
    if backward is None:
        return forward
    again, main = backward.recompute, backward.main
    parts = _parts("backward", again, scan.chunk, machine, " to recompute carries") if again is not None else ()
    return (*forward, *parts, *_parts("backward", main, scan.chunk, machine))


def _parts(direction: str, split: Split, chunk: int, machine: Machine, end: str = "") -> Iterator[PartCost]:
    fixed = split.program.fixed
    for number, loop in enumerate(split.loops, 1):
        # Step by step, products read their matrices at each step.
        cost = machine.estimate(loop.body, fixed, chunk) if loop.in_parallel else machine.estimate(loop.body)
        yield _part(direction, f"in loop {number}{end}", cost)
    if split.outside_loops:
        yield _part(direction, f"at once{end}", machine.estimate(split.outside_loops, fixed, chunk))


def _part(direction: str, part: str, cost: Cost) -> PartCost:
    return PartCost(direction, part, cost.seconds, cost.flops, cost.bytes)


def estimate_function(machine: Machine, function: Callable[..., Any], *arguments: Any) -> Cost:
    """The estimated cost of a function, once for each step.

    Args:
        machine: the machine.
        function: the function.
        arguments: its arguments, as arrays or `jax.ShapeDtypeStruct`. The first one is the same at every step.
    """
    leaves, tree = jax.tree.flatten(arguments)
    flat = trace(lambda *leaves: jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves))), *leaves)
    fixed = determined(flat.equations, flat.known[: len(jax.tree.leaves(arguments[0]))])
    return machine.estimate(flat.equations, fixed)


def solving_time(plan: ExecutionPlan) -> float:
    """Estimate the time of one step of the iterations that solve a plan's loops, as many as are usual."""
    loops = [loop.recurrence for loop in plan.newton_loops]
    return fsum(_usual_iterations(loop) * _iteration_time(plan.choices.machine, loop) for loop in loops)


def relative_time_of_iteration(plan: ExecutionPlan, loop: NewtonLoop) -> float:
    """Estimate the time of one step of an iteration, relative to that of the loop where it runs step by step."""
    machine, recurrence = plan.choices.machine, loop.recurrence
    step_by_step = estimate_function(machine, recurrence.cycle.step, *_types(recurrence)).nanoseconds
    return _iteration_time(machine, recurrence) / max(1.0, step_by_step)


def _usual_iterations(recurrence: Recurrence) -> int:
    assert recurrence.newton is not None
    return min(_ITERATIONS[recurrence.kind], recurrence.newton.max_iterations)


def _iteration_time(machine: Machine, recurrence: Recurrence) -> float:
    """Estimate the time of one step of an iteration, in nanoseconds.

    It evaluates the loop with its Jacobian, and runs a linear recurrence as an associative scan, which composes two
    steps about twice as often as there are steps.
    """
    size = len(recurrence.cycle.leaves)
    compose = machine.ns_per_element * 2 * (size**3 + size**2) * prod(recurrence.cycle.leaves[0].shape)
    return estimate_function(machine, recurrence.cycle.with_jacobian, *_types(recurrence)).nanoseconds + 2 * compose


def _types(recurrence: Recurrence) -> tuple[list[Any], list[Any]]:
    cycle = recurrence.cycle
    return [leaf.aval for leaf in cycle.leaves], [value.aval for value in cycle.reads]
