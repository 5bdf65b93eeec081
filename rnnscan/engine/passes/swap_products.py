"""Weights' cotangents without a transposition."""

from dataclasses import replace

from rnnscan.engine.passes.sums import Sums
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Equation, Program


def swap_products(program: Program) -> Program:
    """Compute `(b.T @ a).T` as `a.T @ b`. The first is how JAX writes the cotangent of a weight."""
    sums = Sums(program)

    def swapped(equation: Equation) -> Equation:
        product = sums.maker.get(equation.inputs[0])
        contraction = contraction_of(product)
        if (
            equation.name != "transpose"
            or equation.params["permutation"] != (1, 0)
            or product is None
            or contraction is None
            or contraction.batch[0]
            or [*map(len, contraction.free)] != [1, 1]  # Both axes may come from one operand.
            or product.params["out_sharding"] is not None
            or not sums.is_read_once(equation.inputs[0])
        ):
            return equation
        left, right = contraction.contracted
        params = {**product.params, "dimension_numbers": ((right, left), contraction.batch)}
        return replace(product, params=params, inputs=product.inputs[::-1], outputs=equation.outputs)

    equations = [swapped(equation) if equation.inputs else equation for equation in program.equations]
    return replace(program, equations=tuple(needed(equations, program.outputs)))
