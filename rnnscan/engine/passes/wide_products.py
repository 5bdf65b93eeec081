"""Products of float16 that are summed in a wider range, made in that range."""

from dataclasses import replace
from itertools import chain

from rnnscan.engine.analysis.linear_sums import ends_of_sum, widens_range
from rnnscan.engine.passes.sums import Sums
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import depending
from rnnscan.ir.program import Equation, Program
from rnnscan.ir.rewrite import replace_equations


def wide_products(program: Program) -> Program:
    """Compute `(a @ b).astype(float32)` of float16, where it is summed over the steps, as a product of float32.

    The first is the cotangent of a weight that a step casts. No sum is pushed through the cast, because that of all
    steps may overflow where those of each do not. Of the second, one product over all steps gives the sum.
    """
    if not any(map(widens_range, program.equations)):
        return program
    sums, varying = Sums(program), depending(program.equations, [*program.known, *program.carry])
    ends = {*chain.from_iterable(ends_of_sum(atom, sums.maker, varying.__contains__) for atom in program.summed)}

    def widened(equation: Equation) -> list[Equation] | None:
        product = sums.maker.get(equation.inputs[0]) if widens_range(equation) else None
        if product is None or contraction_of(product) is None or not sums.is_read_once(equation.inputs[0]):
            return None
        (wide,) = equation.outputs
        params = {**product.params, "preferred_element_type": wide.dtype}
        return [replace(product, params=params, outputs=(wide,))] if wide in ends else None

    return replace_equations(program, widened)
