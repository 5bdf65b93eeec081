"""Which sums over the steps are made in the loop, and which after it, from what the loop leaves behind."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from rnnscan.engine.chunk import ADDITIVE, LINEAR
from rnnscan.engine.split import Roles
from rnnscan.engine.trace import Atom, Equation, Program, Value, values_of


def accumulated_in_loop(program: Program, roles: Roles) -> list[int]:
    """The positions in `roles.summed` whose sum is better made in the loop.

    A sum that ends in products is made after the loop, from the stacked operands, if these are smaller than the two
    accesses a step that an accumulator costs. Another one is made after the loop only if that stacks nothing more:
    a cotangent that is elementwise at its end would make a stack of its own size.
    """
    varying = _depending(program, [*roles.known, *roles.carry])
    looped = _depending(program, roles.carry)
    maker = {output: equation for equation in program.equations for output in equation.outputs}
    ends = [list(_ends(atom, maker, varying)) for atom in roles.summed]
    stacked: set[Value] = set()
    in_loop = []
    for position, (atom, its_ends) in enumerate(zip(roles.summed, ends, strict=True)):
        operands = {
            value for end in its_ends if isinstance(end, Equation) for value in values_of(end.inputs) if value in looped
        }
        if _is_product(its_ends) and sum(map(_bytes, operands)) <= 2 * _bytes(atom):
            stacked |= operands
        else:
            in_loop.append(position)
    return [
        position
        for position in in_loop
        if not all(isinstance(end, Value) and (end in stacked or end not in looped) for end in ends[position])
    ]


def _ends(atom: Atom, maker: dict[Value, Equation], varying: set[Value]) -> Iterator[Equation | Value]:
    """Where a sum over steps can be pushed down to: products of two varying values, or values to be stacked."""
    if not isinstance(atom, Value) or atom not in varying:
        return
    equation = maker.get(atom)
    primitive = "" if equation is None else equation.primitive.name
    if equation is not None and primitive in LINEAR | ADDITIVE:
        for operand in equation.inputs:
            yield from _ends(operand, maker, varying)
    elif equation is not None and primitive == "dot_general":
        operands = [value for value in values_of(equation.inputs) if value in varying]
        if len(equation.inputs) == len(operands):
            yield equation
        else:
            yield from _ends(operands[0], maker, varying)
    else:
        yield atom


def _is_product(ends: Sequence[Equation | Value]) -> bool:
    return bool(ends) and all(isinstance(end, Equation) for end in ends)


def _depending(program: Program, inputs: Sequence[Value]) -> set[Value]:
    depending = set(inputs)
    for equation in program.equations:
        if any(value in depending for value in values_of(equation.inputs)):
            depending.update(equation.outputs)
    return depending


def _bytes(atom: Any) -> int:
    return prod(atom.aval.shape) * atom.aval.dtype.itemsize if isinstance(atom, Value) else 0
