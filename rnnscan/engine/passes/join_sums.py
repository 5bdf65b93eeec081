"""One sum in place of two."""

from dataclasses import replace

from rnnscan.ir.program import Equation, Program
from rnnscan.ir.rewrite import replace_equations


def join_sums(program: Program) -> Program:
    """Compute `sum(sum(x, axis=0)[None], axis=0)` as `sum(x, axis=0)`.

    The first is how JAX writes the cotangent of a bias that is added to rows.
    """
    maker = program.maker

    def joined(equation: Equation) -> list[Equation] | None:
        reshape = maker.get(equation.inputs[0]) if equation.name == "reduce_sum" else None
        inner = maker.get(reshape.inputs[0]) if reshape and reshape.name == "reshape" else None
        if (
            reshape is None
            or inner is None
            or inner.name != "reduce_sum"
            or inner.outputs[0].shape != equation.outputs[0].shape
            or reshape.params["dimensions"] is not None
            or any(reduction.params["out_sharding"] is not None for reduction in (inner, equation))
        ):
            return None
        return [replace(inner, outputs=equation.outputs)]

    return replace_equations(program, joined)
