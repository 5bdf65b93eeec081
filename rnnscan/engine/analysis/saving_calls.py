"""Scans within a step whose residuals are kept between the passes of the scan around them.

How a scan saves, and how its derivative reads what it has saved, needs more than an analysis: who knows registers it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jax.extend import core

from rnnscan.engine.analysis.leaves import split_list
from rnnscan.engine.analysis.restore import without_tangent
from rnnscan.ir.program import Atom, Equation


# (the equation of a scan) -> the same with residuals after its results; None if it saves none
Save: TypeAlias = Callable[[Equation], Equation | None]
# (step, scan, operands, results, residuals) -> results, whose derivative is that of the scan and reads the residuals
Restore: TypeAlias = Callable[[core.ClosedJaxpr, Any, Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]


class _Rules:
    save: Save
    restore: Restore


def register(**rules: Any) -> None:
    """Register how scans `save`, a `Save`, or how derivatives read what they have saved: `restore`, a `Restore`."""
    for name, rule in rules.items():
        setattr(_Rules, name, staticmethod(rule))


def saving_equation(equation: Equation) -> Equation | None:
    """The equation of a scan with residuals after its results; None if it is none, or saves none."""
    is_plain = equation.name == SCAN and equation.params["saving"] is None
    return _Rules.save(equation) if is_plain else None


# The name of the primitive.
SCAN = "rnnscan_scan"


@dataclass(frozen=True, eq=False)
class SavingCall:
    """A scan with its residuals among its results.

    Attributes:
        primitive: the scan's primitive.
        step: the step of the scan without them.
        scan: its other parameters.
        reads: for each result whether the derivative reads it. It reads all operands and residuals.
    """

    primitive: Any
    step: core.ClosedJaxpr
    scan: Any
    reads: tuple[bool, ...]

    def read_by_derivative(self, equation: Equation) -> list[Atom]:
        """The operands and results of the equation that its derivative reads."""
        results, residuals = split_list(equation.outputs, [len(self.reads)])
        read = (atom for atom, is_read in zip(results, self.reads, strict=True) if is_read)
        return [*equation.inputs, *read, *residuals]

    def restored(self, operands: Sequence[Any], known: Sequence[Any]) -> list[Any]:
        """The results, then the residuals, where at least the residuals are known.

        Args:
            operands: the operands.
            known: each result, then each residual; None where it is not known.
        """
        results, residuals = split_list(known, [len(self.reads)])
        if any(result is None for result in results):
            # Derivatives go through the rule. What nothing reads of this is dropped.
            params = {"step": self.step, "scan": self.scan, "saving": None}
            pairs = zip(results, self.primitive.bind(*map(without_tangent, operands), **params), strict=True)
            results = [value if result is None else result for result, value in pairs]
        return [*_Rules.restore(self.step, self.scan, operands, results, residuals), *residuals]


def saving_call(equation: Equation) -> SavingCall | None:
    """The saving form of a scan; None if it is none, or returns no residuals."""
    saving = equation.params["saving"] if equation.name == SCAN else None
    return None if saving is None or saving.call is None else SavingCall(equation.primitive, *saving.call)
