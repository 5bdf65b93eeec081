"""Describe a small loop: what is written out so that it is one kernel, or what keeps it from that."""

import os
from collections import Counter

import jax

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.messages import describe, listing
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.one_kernel.fits import OneKernel
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.ir.program import Equation, total_bytes, values_of
from rnnscan.ir.traits import Kind


# Before jax 0.12 XLA compiles a loop to one kernel only if a step touches less (seen with 0.10.0 and 0.10.2).
_MOST_BYTES = 1 << 10
_OPTION = "xla_cpu_small_while_loop_byte_threshold"


def describe_kernel(plan: ExecutionPlan) -> str:
    """How a small loop is one kernel, or what keeps it from that, in a sentence; empty if the loop is too large."""
    if plan.route.engine != "fission" or not plan.choices.one_kernel:
        return ""
    kernel = plan.kernel
    if kernel is not None:
        return "one kernel: " + "; ".join(filter(None, [_written(kernel), _kept(plan), _flag(kernel, plan)]))
    kernel = OneKernel(plan.call.flat.program, plan.choices.machine)
    obstacle = kernel.obstacle
    if obstacle is None or not kernel.is_faster:
        return ""
    why = "has an effect" if obstacle.effects else "is not written out"
    return f"not one kernel: {_in_words(obstacle)} {why}. Without it the loop would be one kernel, which is faster"


def _in_words(equation: Equation) -> str:
    """An equation by its operation, the types of its operands and the user's line."""
    types = ", ".join(describe(atom) for atom in equation.inputs if atom.shape)
    place = f" at {equation.origin.place}" if equation.origin.place else ""
    return f"{equation.name}{f' of {types}' if types else ''}{place}"


def _written(kernel: OneKernel) -> str:
    counts = Counter(kernel.calls)
    names = [name if count == 1 else f"{count} {name}" for name, count in sorted(counts.items())]
    return f"written out are {listing(names)}" if names else "nothing in it calls a library"


def _kept(plan: ExecutionPlan) -> str:
    nbytes = plan.call.length * total_bytes(values_of(plan.scan(plan.call.length).step.kept))
    if not nbytes:
        return "the backward pass computes each step again"
    return f"kept are values that take longer to compute again, about {readable_bytes(nbytes)}"


def _flag(kernel: OneKernel, plan: ExecutionPlan) -> str:
    touched = _touched_bytes(kernel, plan.scan(plan.call.length).step)
    if jax.__version_info__ >= (0, 12) or touched < _MOST_BYTES or _OPTION in os.environ.get("XLA_FLAGS", ""):
        return ""
    return (
        f"a step touches about {readable_bytes(touched)}, and before jax 0.12 XLA makes one kernel of 1 KiB at most. "
        f"Set XLA_FLAGS=--xla_backend_extra_options={_OPTION}=65536 before jax starts: about 3 to 15 times faster"
    )


def _touched_bytes(kernel: OneKernel, step: FlatStep) -> int:
    """About the bytes that a step of the forward pass reads and writes where something is differentiated.

    They are those of its carry twice, its inputs, outputs and kept values, and of what it sums.
    """
    assert kernel.written is not None
    sums = [equation for equation in kernel.written.equations if equation.kind is Kind.REDUCE]
    summed = sum(total_bytes([*equation.reads, *equation.outputs]) for equation in sums)
    return summed + total_bytes([*step.inputs, *values_of([*step.new_carry, *step.y, *step.kept])])
