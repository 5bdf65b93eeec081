"""Store weights in the order in which a loop reads them."""

from dataclasses import replace

from jax import lax

from rnnscan.engine.passes.join_products import is_rows_by_matrix
from rnnscan.ir.program import Atom, Equation, Program, Value, operation


def store_transposed(program: Program) -> Program:
    """Compute `x @ w.T`, the cotangent of `x @ w`, from an invariant transposed copy of `w`."""
    copies: dict[Atom, Value] = {}
    equations: list[Equation] = []
    for equation in program.equations:
        if is_rows_by_matrix(equation, program.fixed, summed=1):
            x, weight = equation.inputs
            if weight not in copies:
                transposition = operation(lax.transpose_p, {"permutation": (1, 0)}, [weight], equation.origin)
                copies[weight] = transposition.outputs[0]
                equations.append(transposition)
            (contracted, _), batch = equation.params["dimension_numbers"]
            by_rows = {**equation.params, "dimension_numbers": ((contracted, (0,)), batch)}
            equations.append(replace(equation, params=by_rows, inputs=(x, copies[weight])))
        else:
            equations.append(equation)
    return replace(program, equations=tuple(equations))
