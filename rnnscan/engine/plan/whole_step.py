"""Whether a step runs whole, in one loop, on a platform where splitting gains little."""

from rnnscan.engine.analysis.cycle import cycles_of
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import determined, needed
from rnnscan.ir.program import Equation, Value, nominal_size, total_bytes


def runs_whole(step: FlatStep) -> bool:
    """Whether a step is mostly recurrent, and no sum over its steps is much cheaper if it is batched over time."""
    return _is_recurrent(step) and not _sums_outer_products(step)


def _is_recurrent(step: FlatStep) -> bool:
    """Whether most of the carry is in loops that are not linear."""
    equations = needed(step.program.equations, step.new_carry)
    cycles = (cycle for _, cycle in cycles_of(equations, step.carry, step.new_carry))
    recurrent = sum(total_bytes(cycle.leaves) for cycle in cycles if not cycle.is_linear(updates=True))
    return 2 * recurrent > total_bytes(step.carry)


def _sums_outer_products(step: FlatStep) -> bool:
    """Whether the gradient of a large array that all steps read is a sum of products of columns and rows.

    The outputs of an encoder are one, where an attention reads them. Batched over time, the sum is a product.
    """
    equations = step.program.equations
    fixed = determined(equations, step.constants)
    small = total_bytes([*step.carry, *step.x])
    return any(
        value in fixed and value.nbytes > small and _rows_beside(equation, value) == 1
        for equation in equations
        if contraction_of(equation) and not fixed.issuperset(equation.reads)
        for value in equation.reads
    )


def _rows_beside(product: Equation, operand: Value) -> int:
    """The rows of the other operand, over which the operand's gradient contracts."""
    side, contraction = 1 - product.inputs.index(operand), contraction_of(product)
    assert contraction is not None
    return nominal_size(product.inputs[side].shape[axis] for axis in contraction.free[side])
