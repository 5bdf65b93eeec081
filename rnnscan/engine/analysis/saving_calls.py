"""Scans within a step: what is kept for them between the passes of the scan around.

What a scan saves needs more than an analysis: who knows registers it.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias

from rnnscan.ir.leaves import split_list
from rnnscan.ir.program import Atom, Equation


# (the equation of a scan) -> the same with residuals after its results; None if it saves none
Save: TypeAlias = Callable[[Equation], Equation | None]


class _Rules:
    save: Save


def register_saving(save: Save) -> None:
    """Register how scans save."""
    _Rules.save = staticmethod(save)


# The name of the primitive.
SCAN = "rnnscan_scan"


def saving_equation(equation: Equation) -> Equation | None:
    """The equation of a scan with residuals after its results; None if it is none, or saves none."""
    is_plain = equation.name == SCAN and equation.params["saving"] is None
    return _Rules.save(equation) if is_plain else None


def saves_residuals(equation: Equation) -> bool:
    """Whether an equation is a scan that returns its residuals, from `saving_equation`."""
    saving = equation.params["saving"] if equation.name == SCAN else None
    return saving is not None and saving.inner is not None


def read_by_derivative(equation: Equation) -> list[Atom]:
    """The operands and results that the derivative of a scan that saves residuals reads."""
    reads = equation.params["saving"].inner.reads
    results, residuals = split_list(equation.outputs, [len(reads)])
    read = (atom for atom, is_read in zip(results, reads, strict=True) if is_read)
    return [*equation.inputs, *read, *residuals]


def reading_residuals(equation: Equation, known: Collection[Atom]) -> Equation:
    """A scan whose derivative reads the residuals that it returns, if these are known; others as they are."""
    if not saves_residuals(equation):
        return equation
    saving = equation.params["saving"]
    if not {*known}.issuperset(equation.outputs[len(saving.inner.reads) :]):
        return equation
    inner = replace(saving.inner, has_residuals=True)
    return replace(equation, params={**equation.params, "saving": replace(saving, inner=inner)})
