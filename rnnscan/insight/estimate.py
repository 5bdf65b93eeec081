"""Where the time of a step goes, by the cost model of the engine."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax

from rnnscan.engine.analysis.split import Split
from rnnscan.engine.costs.machine import Cost, Machine
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.run.backward import splits_of_derivative
from rnnscan.ir.program import outputs_of


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


def estimate_parts(plan: ExecutionPlan) -> tuple[PartCost, ...]:
    """The estimated costs of a plan's loops and of its batched work, forward and backward.

    The backward pass is that of all floating-point leaves of the parameters, carry and inputs. It is left out where
    JAX has no derivative of the step, where the lax engine runs it, and where matrix states have the chunkwise form.
    Nothing is estimated of Newton's method.
    """
    machine, windows = plan.choices.machine, plan.windows(plan.call.length)
    if plan.call.parallel is not None or (windows is not None and not plan.loops_forward):
        return ()
    scan = plan.scan(plan.call.length)
    if plan.route.engine != "fission":
        program = scan.step.program
        return (_part("forward", "in one loop", machine.estimate(program.equations)),)
    forward = tuple(_parts("forward", scan.written, scan.chunk, machine))
    if windows is not None:
        return forward
    leaves = jax.tree.leaves(plan.call.carry)
    carry = [leaves[index] for index in scan.step.changing]
    splits = splits_of_derivative(scan, plan.constants, carry, jax.tree.leaves(plan.call.xs))
    if splits is None:
        return forward
    recompute, pull = splits
    again = _parts("backward", recompute, scan.chunk, machine, " to recompute carries") if recompute is not None else ()
    return (*forward, *again, *_parts("backward", pull, scan.chunk, machine))


def _parts(direction: str, split: Split, chunk: int, machine: Machine, end: str = "") -> Iterator[PartCost]:
    fixed = {*split.program.invariant, *outputs_of(split.invariant)}
    for number, loop in enumerate(split.loops, 1):
        # Step by step, products read their matrices at each step.
        cost = machine.estimate(loop.body, fixed, chunk) if loop.in_parallel else machine.estimate(loop.body)
        yield _part(direction, f"in loop {number}{end}", cost)
    if split.outside_loops:
        yield _part(direction, f"at once{end}", machine.estimate(split.outside_loops, fixed, chunk))


def _part(direction: str, part: str, cost: Cost) -> PartCost:
    return PartCost(direction, part, cost.seconds, cost.flops, cost.bytes)


def estimate_lines(parts: tuple[PartCost, ...], machine: str) -> Iterator[str]:
    """A line of text for each direction."""
    for direction in dict.fromkeys(part.direction for part in parts):
        texts = [f"{_duration(part.seconds)} {part.part}" for part in parts if part.direction == direction]
        yield f"estimated time of a step on {machine}, {direction}: about {', '.join(texts)}"


def _duration(seconds: float) -> str:
    microseconds = 1e6 * seconds
    if microseconds < 10:
        return f"{max(microseconds, 0.1):.1f} us"
    return f"{microseconds:,.0f} us"
