"""Values that the backward pass is given, and need not compute again: kept ones, and new carries."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Program, Value
from rnnscan.ir.rewrite import replace_inputs, replace_outputs
from rnnscan.ir.traits import Kind


def derives_from_result(equation: Equation) -> bool:
    """Whether the derivative of an equation follows from its result."""
    return equation.traits.derivative_reads == "results"


@jax.custom_jvp
def restored(computed: Any, kept: Any) -> Any:
    """The kept value, whose derivative is that of the computed one."""
    return kept


@restored.defjvp
def _restored_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[1], tangents[0]


def reading_kept(program: Program, pairs: int) -> Program:
    """The program without its last outputs, which reads kept values in place of computed ones.

    JAX differentiates many functions by their results: `exp`, `tanh`, and, by a custom rule, `logaddexp`. The result
    that such a rule computes is the kept value, and then nothing needs it.

    The gradient of a maximum goes to the operand that equals it. A kept maximum may differ in rounding from an operand
    that is computed again, by other operations than in the forward pass, and then would equal none. So what its rule
    compares stays as it is computed. A later maximum reads the kept one, and so does its rule: see `restored`.

    Args:
        program: a program whose last stacked outputs are values that it computes, each followed by the kept value.
        pairs: the number of these pairs.
    """
    size = len(program.stacked) - 2 * pairs
    same: dict[Atom, Atom] = dict(zip(program.stacked[size::2], program.stacked[size + 1 :: 2], strict=True))

    compared, maker = _compared(program), program.maker
    not_chosen = {computed: kept for computed, kept in same.items() if not _is_chosen(computed, maker)}
    equations = [
        replace_inputs(equation, not_chosen if compared.issuperset(equation.outputs) else same)
        for equation in program.equations
    ]
    program = replace_outputs(replace(program, stacked=program.stacked[:size]), same)
    return replace(program, equations=tuple(needed(equations, program.stacked)))


def _is_chosen(atom: Atom, maker: Mapping[Atom, Equation]) -> bool:
    """Whether a value is one of some operands, which its derivative finds by comparing."""
    equation = maker.get(atom)
    while equation is not None and equation.kind in (Kind.VIEW, Kind.SAME):
        equation = maker.get(equation.inputs[0])
    return equation is not None and equation.name in _CHOOSING


_CHOOSING = frozenset({"max", "min", "reduce_max", "reduce_min", "cummax", "cummin"})


def _compared(program: Program) -> set[Value]:
    """The results of comparisons for equality, and the views of values that these compare."""
    compared = set[Value]()
    read = set[Value]()
    for equation in reversed(program.equations):
        is_view = equation.kind in (Kind.VIEW, Kind.SAME) and not read.isdisjoint(equation.outputs)
        if equation.name == "eq" or is_view:
            compared.update(equation.outputs)
            read.update(equation.reads)
    return compared
