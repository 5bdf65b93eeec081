"""The derivative rule of a `jax.custom_jvp`, written out: that of `jnp.linalg.det` solves linear equations."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from rnnscan.engine.analysis.leaves import split_list
from rnnscan.engine.analysis.probe import with_tangents
from rnnscan.ir.program import Equation, Program, evaluate, read
from rnnscan.ir.trace import program_of


def with_written_rule(equation: Equation, write: Callable[[Program], Program]) -> Any:
    """The jaxpr of a `jax.custom_jvp` whose function and rule are written out.

    The rule is written when JAX asks for it: it may have the function in itself, for derivatives of second order.

    Args:
        equation: the call.
        write: writes a program out.
    """
    types = [atom.aval for atom in equation.inputs]
    written = write(program_of(equation.params["call_jaxpr"]))

    @jax.custom_jvp
    def function(*operands: Any) -> list[Any]:
        return _run(written, operands)

    @partial(function.defjvp, symbolic_zeros=True)
    def differentiate(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        moving = [not isinstance(tangent, SymbolicZero) for tangent in tangents]
        program, _ = with_tangents(equation.evaluate, types, moving)
        dots = compress(tangents, moving)
        results, of_results = split_list(_run(write(program), [*primals, *dots]), [len(equation.outputs)])
        return results, of_results

    return equation.origin.run(jax.make_jaxpr(function), *types)


def _run(program: Program, operands: Sequence[Any]) -> list[Any]:
    values = dict(zip(program.known, operands, strict=True))
    evaluate(program.equations, values)
    return [read(atom, values) for atom in program.stacked]
