"""Values that the backward pass is given, and need not compute again: kept ones, and new carries."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import jax

from rnnscan._util.dtypes import at_least_float32
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Constant, Equation, Program, Value
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


def reading_kept(program: Program, pairs: int, given: Collection[Value] = ()) -> Program:
    """The program without its last outputs, which reads kept values in place of computed ones.

    JAX differentiates many functions by their results: `exp`, `tanh`, and, by a custom rule, `logaddexp`. The result
    that such a rule computes is the kept value, and then nothing needs it.

    The gradient of a maximum goes to the operand that equals it. A kept maximum may differ in rounding from an operand
    that is computed again, by other operations than in the forward pass, and then would equal none. So what its rule
    compares stays as it is computed, unless the operands round as they did. A later maximum reads the kept one, and so
    does its rule: see `restored`.

    Args:
        program: a program whose last stacked outputs are values that it computes, each followed by the kept value.
        pairs: the number of these pairs.
        given: the inputs that are what the forward pass read. The others are computed again.
    """
    size = len(program.stacked) - 2 * pairs
    same: dict[Atom, Atom] = dict(zip(program.stacked[size::2], program.stacked[size + 1 :: 2], strict=True))

    compared, maker = _compared(program), program.maker
    not_chosen = {computed: kept for computed, kept in same.items() if not _may_equal_none(computed, maker, given)}
    equations = [
        replace_inputs(equation, not_chosen if compared.issuperset(equation.outputs) else same)
        for equation in program.equations
    ]
    program = replace_outputs(replace(program, stacked=program.stacked[:size]), same)
    return replace(program, equations=tuple(needed(equations, program.stacked)))


def _may_equal_none(atom: Atom, maker: Mapping[Atom, Equation], given: Collection[Value]) -> bool:
    """Whether a value is chosen from operands that may round otherwise than before, so that none need equal it."""
    equation = maker.get(atom)
    while equation is not None and equation.kind in (Kind.VIEW, Kind.SAME):
        equation = maker.get(equation.inputs[0])
    if equation is None or equation.name not in _CHOOSING:
        return False
    return not all(_rounds_as_before(operand, maker, given) for operand in equation.inputs)


def _rounds_as_before(
    atom: Atom, maker: Mapping[Atom, Equation], given: Collection[Value], *, operations: int = 1
) -> bool:
    """Whether a value is the same number wherever XLA computes it.

    It is if at most one sum or product of given values makes it. XLA may contract a product and a sum that reads it,
    and may compute values of 16 bits in 32.
    """
    if isinstance(atom, Constant) or atom in given:
        return True
    equation = maker.get(atom)
    if equation is None or atom.dtype != at_least_float32(atom.dtype):
        return False
    if equation.kind is Kind.ELEMENTWISE and (equation.traits.is_linear or equation.traits.is_bilinear):
        operations -= 1
    elif equation.kind not in (Kind.VIEW, Kind.PART):
        return False
    return operations >= 0 and all(
        _rounds_as_before(operand, maker, given, operations=operations) for operand in equation.inputs
    )


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
