"""Common subexpression elimination."""

from collections.abc import Hashable
from dataclasses import replace

from rnnscan.ir.program import Atom, Equation, Program


def remove_repeats(program: Program) -> Program:
    """Compute each operation on the same values once.

    XLA does so within a loop, but would stack a repeated value twice for later work.
    """
    first: dict[Hashable, Equation] = {}
    same: dict[Atom, Atom] = {}
    equations = []
    for equation in program.equations:
        if not same.keys().isdisjoint(equation.inputs):
            equation = replace(equation, inputs=tuple(same.get(atom, atom) for atom in equation.inputs))
        earlier = first.setdefault((equation.operation, equation.inputs), equation)
        if earlier is equation:
            equations.append(equation)
        else:
            same.update(zip(equation.outputs, earlier.outputs, strict=True))
    groups = {name: getattr(program, name) for name in ("new_carry", "summed", "stacked")}
    outputs = {name: tuple(same.get(atom, atom) for atom in atoms) for name, atoms in groups.items()}
    return replace(program, equations=tuple(equations), **outputs)


def remove_repeated_products(program: Program) -> Program:
    """Remove repeats if that leaves fewer products.

    A shared mask is not worth it: over a mesh all values that read it get its sharding, and a chain's inputs were
    gathered at each step.
    """
    without = remove_repeats(program)
    return without if _count_products(without) < _count_products(program) else program


def _count_products(program: Program) -> int:
    return sum(equation.primitive.name == "dot_general" for equation in program.equations)
