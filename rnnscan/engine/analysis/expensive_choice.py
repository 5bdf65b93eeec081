"""Which expensive values a scan keeps: the most expensive first, unless loops recompute more of its carry for one."""

from collections.abc import Callable, Collection

from rnnscan.engine.analysis.expensive_values import Derivative, ExpensiveValues, cones_with_all_carries
from rnnscan.engine.costs.machine import Machine
from rnnscan.ir.program import Atom, Equation, Program, Value


def values_to_keep(
    program: Program,
    kept: tuple[Atom, ...],
    repeats: Collection[int],
    recomputable: Collection[int],
    cheap_carries: Callable[[Collection[Atom]], Collection[int]],
    looped: Collection[Equation],
    machine: Machine,
    most_bytes: int,
) -> list[Value]:
    """The values that spare most for their bytes.

    Args:
        program: the step.
        kept: the values that are kept in any case.
        repeats: the carry leaves that y repeats.
        recomputable: the carry leaves that may be recomputed.
        cheap_carries: those that loops can recompute cheaply if some values are kept.
        looped: the equations that lie in loops. To know the value of another one cuts no loop.
        machine: the machine that it runs on.
        most_bytes: the most bytes that they may take at each step.
    """
    chosen, rejected = list[Value](), set[Value]()
    cheap = recomputed = frozenset(cheap_carries(kept))
    cones = cones_with_all_carries(program, kept)

    def expensive_values() -> ExpensiveValues:
        stacked = frozenset(range(len(program.carry))).difference(repeats, recomputed)
        known = frozenset([*kept, *chosen, *(program.new_carry[leaf] for leaf in repeats)])
        return ExpensiveValues(Derivative(program, known, stacked), rejected, machine)

    values = expensive_values()
    while (expensive := values.next(most_bytes)) is not None:
        new, equation = expensive.values, expensive.equation
        cheap_then = frozenset(cheap_carries([*kept, *chosen, *new])) if equation in looped else cheap
        cone = cones.of(equation)
        # No loop is to recompute more of the carry for it, but what nothing reads then.
        if any(cones.reads(leaf) and leaf not in cone.inputs for leaf in cheap_then - recomputed):
            rejected.update(new)
            values.reject(expensive)
            continue
        cones.remove(cone)
        values.keep(expensive)
        chosen += new
        cheap, most_bytes = cheap_then, most_bytes - expensive.nbytes
        before = recomputed
        recomputed = frozenset(leaf for leaf in recomputable if leaf in cheap or not cones.reads(leaf))
        # A leaf that is read neither before nor after a step changes nothing.
        if before - recomputed or any(map(values.reads, recomputed - before)):
            values = expensive_values()
    return chosen
