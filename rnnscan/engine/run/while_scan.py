"""A scan that stops by a condition, step by step. What is invariant runs before it."""

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from rnnscan.engine.loops.stopping import scan_while
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.runner import invariant_values
from rnnscan.ir.program import evaluate, read


def run_while(
    plan: ScanPlan, condition: core.ClosedJaxpr, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> list[Any]:
    """The final carry, and the stacked outputs, which are zero after the last step.

    Args:
        plan: the plan, with the most steps for a length.
        condition: the jaxpr of `(*constants, *carry) -> whether another step runs`.
        constants: the arrays that the step closes over.
        carry: the initial carry.
        xs: the inputs.
    """
    program = plan.step.program
    equations, values = program.equations, dict(zip(program.invariant, constants, strict=True))
    if not any(equation.effects for equation in equations):  # A split leaves out what no result needs.
        split = plan.forward(save=False)
        program, equations, values = split.program, tuple(split.varying), invariant_values([split], constants)
    holds = core.jaxpr_as_fun(condition)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        known = {**values, **dict(zip([*program.carry, *program.known], [*carry, *x], strict=True))}
        evaluate(equations, known)
        new_carry, ys = ([read(atom, known) for atom in atoms] for atoms in (program.new_carry, program.stacked))
        return new_carry, ys

    types = [atom.aval for atom in program.stacked]
    final, ys = scan_while(step, lambda carry: holds(*constants, *carry)[0], carry, xs, types, plan.length)
    return [*final, *ys]
