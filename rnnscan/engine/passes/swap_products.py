"""Weights' cotangents without a transposition."""

from dataclasses import replace

from rnnscan.engine.passes.sums import Sums
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.program import Equation, Program
from rnnscan.ir.rewrite import replace_equations


def swap_products(program: Program) -> Program:
    """Compute `(b.T @ a).T` as `a.T @ b`. The first is how JAX writes the cotangent of a weight."""
    sums = Sums(program)

    def swapped(equation: Equation) -> list[Equation] | None:
        product = sums.maker.get(equation.inputs[0]) if equation.name == "transpose" else None
        contraction = contraction_of(product)
        if (
            product is None
            or contraction is None
            or equation.params["permutation"] != (1, 0)
            or contraction.batch[0]
            or [*map(len, contraction.free)] != [1, 1]  # Both axes may come from one operand.
            or product.params["out_sharding"] is not None
            or not sums.is_read_once(equation.inputs[0])
        ):
            return None
        left, right = contraction.contracted
        params = {**product.params, "dimension_numbers": ((right, left), contraction.batch)}
        return [replace(product, params=params, inputs=product.inputs[::-1], outputs=equation.outputs)]

    return replace_equations(program, swapped)
