"""Rewrites that graphs and the engine share: other operands, outputs and equations, and equal operations once."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace

from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Program


def replace_inputs(equation: Equation, replacements: Mapping[Atom, Atom]) -> Equation:
    """The equation with other operands."""
    if replacements.keys().isdisjoint(equation.inputs):
        return equation
    return replace(equation, inputs=tuple(replacements.get(atom, atom) for atom in equation.inputs))


def replace_outputs(program: Program, replacements: Mapping[Atom, Atom]) -> Program:
    """The program with other outputs."""
    groups = {name: getattr(program, name) for name in ("new_carry", "summed", "stacked")}
    return replace(
        program, **{name: tuple(replacements.get(atom, atom) for atom in atoms) for name, atoms in groups.items()}
    )


def replace_equations(program: Program, rewrite: Callable[[Equation], Iterable[Equation] | None]) -> Program:
    """The program with others in place of some equations, and without those that no output needs.

    Args:
        program: the program.
        rewrite: the equations in place of one; None: it stays.
    """
    equations: list[Equation] = []
    for equation in program.equations:
        equations += rewrite(equation) or [equation]
    return replace(program, equations=tuple(needed(equations, program.outputs)))


def merge_equal(
    equations: Iterable[Equation], key: Callable[[Equation], Hashable]
) -> tuple[list[Equation], dict[Atom, Atom]]:
    """Compute equal operations once: common subexpression elimination.

    Args:
        equations: equations in running order.
        key: equal for equations of which the first is enough. It is asked once the operands are replaced.

    Returns:
        The equations that stay, and for each output of the others the value to read in its place.
    """
    first: dict[Hashable, Equation] = {}
    replacements: dict[Atom, Atom] = {}
    kept = []
    for equation in equations:
        equation = replace_inputs(equation, replacements)
        earlier = equation if equation.effects else first.setdefault(key(equation), equation)
        if earlier is equation:
            kept.append(equation)
        else:
            replacements.update(zip(equation.outputs, earlier.outputs, strict=True))
    return kept, replacements
