"""What equations need, and what depends on what: one walk over them each."""

from collections.abc import Iterable, Sequence, Set

from rnnscan.ir.program import Atom, Equation, Value, values_of


def needed(
    equations: Sequence[Equation],
    wanted: Iterable[Atom],
    known: Set[Atom] = frozenset(),
    *,
    with_effects: bool = False,
) -> list[Equation]:
    """The equations that the wanted values depend on, in order: dead code elimination.

    Args:
        equations: equations, in order.
        wanted: the values.
        known: values that need no equation to be read.
        with_effects: whether equations with effects, and what they depend on, stay too.
    """
    open_values = set(values_of(wanted))
    kept = []
    for equation in reversed(equations):
        if not open_values.isdisjoint(equation.outputs) or (with_effects and equation.effects):
            kept.append(equation)
            open_values.update(value for value in equation.reads if value not in known)
    return kept[::-1]


def between(equations: Iterable[Equation], begins: Iterable[Value], ends: Iterable[Atom]) -> list[Equation]:
    """The equations that the values `ends` depend on where `begins` are known, in order."""
    known = set(begins)
    return needed([equation for equation in equations if known.isdisjoint(equation.outputs)], ends)


def depending(equations: Iterable[Equation], inputs: Iterable[Value]) -> set[Value]:
    """The inputs, and every value that depends on one of them."""
    dependents = set(inputs)
    for equation in equations:
        if not dependents.isdisjoint(equation.reads):
            dependents.update(equation.outputs)
    return dependents


def partition(equations: Iterable[Equation], values: Set[Atom]) -> tuple[list[Equation], list[Equation]]:
    """The equations whose results are all among some values, and the other equations."""
    halves: tuple[list[Equation], list[Equation]] = ([], [])
    for equation in equations:
        halves[0 if {*equation.outputs} <= values else 1].append(equation)
    return halves
