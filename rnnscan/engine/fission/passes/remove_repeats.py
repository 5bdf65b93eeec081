"""Common subexpressions: an operation on the same values is computed once."""

from collections.abc import Hashable
from dataclasses import replace

from rnnscan.engine.fission.program import Atom, Equation, Program


def remove_repeats(program: Program) -> Program:
    """Compute once what the program computes twice from the same values.

    XLA does so within a loop, but a repeated value that later work reads would be stacked twice.
    """
    first: dict[Hashable, Equation] = {}
    same: dict[Atom, Atom] = {}
    equations = []
    for equation in program.equations:
        equation = replace(equation, inputs=tuple(same.get(atom, atom) for atom in equation.inputs))
        earlier = first.setdefault((equation.operation, equation.inputs), equation)
        if earlier is equation:
            equations.append(equation)
        else:
            same.update(zip(equation.outputs, earlier.outputs, strict=True))
    groups = {name: getattr(program, name) for name in ("new_carry", "summed", "stacked")}
    outputs = {name: tuple(same.get(atom, atom) for atom in atoms) for name, atoms in groups.items()}
    return replace(program, equations=tuple(equations), **outputs)
