"""Scans within a step: they keep the same values between the passes as they would alone.

Else each level of nested scans runs the levels below once more on the backward pass.
"""

from dataclasses import replace

from rnnscan.engine.analysis.derivative_reads import read_by_derivatives
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.saving_calls import saving_equation
from rnnscan.ir.components import Components
from rnnscan.ir.program import inputs_of


def keeping_residuals(step: FlatStep) -> FlatStep:
    """The step with the residuals of its scans, and the results that it reads, among its kept values.

    A scan that is batched over time, because it lies in no loop, is left as it is.
    """
    program = step.program
    looped = {*Components(program.equations, program.carry, program.new_carry).loops(program.equations)}
    saving = {old: new for old in program.equations if old in looped and (new := saving_equation(old))}
    if not saving:
        return step
    equations = tuple(saving.get(equation, equation) for equation in program.equations)
    read = {*inputs_of(equations), *read_by_derivatives(replace(program, equations=equations))}
    # The others are known as the carry before the next step, or nothing reads them.
    results = read - {*program.new_carry, *step.kept}
    kept = [
        value for old, new in saving.items() for value in new.outputs if value in results or value not in old.outputs
    ]
    return replace(step, program=replace(program, equations=equations)).keeping_too(*kept)
