"""Common subexpression elimination."""

from collections.abc import Hashable
from dataclasses import replace

from rnnscan.engine.fission.program import Atom, Equation, Program


def remove_repeats(program: Program) -> Program:
    """Compute each operation on the same values once.

    XLA does so within a loop, but would stack a repeated value twice for later work.
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
