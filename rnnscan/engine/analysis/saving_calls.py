"""Calls within a step whose residuals are kept between the passes of the scan around them: a scan in a scan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rnnscan.engine.analysis.leaves import split_list
from rnnscan.engine.analysis.restore import without_tangent
from rnnscan.ir.program import Atom, Equation


@dataclass(frozen=True, eq=False)
class SavingCall:
    """A call with its residuals among its results.

    Attributes:
        call: the call without them.
        restore: `(operands, results, residuals) -> results`. Their derivative is that of the call. It reads residuals.
        reads: for each operand, each result and each residual whether that derivative reads it.
    """

    call: Equation
    restore: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]
    reads: Sequence[bool]

    def read_by_derivative(self, equation: Equation) -> list[Atom]:
        """The operands and results of the equation that its derivative reads."""
        atoms = (*equation.inputs, *equation.outputs)
        return [atom for atom, is_read in zip(atoms, self.reads, strict=True) if is_read]

    def restored(self, operands: Sequence[Any], known: Sequence[Any]) -> list[Any]:
        """The results, then the residuals, where at least the residuals are known.

        Args:
            operands: the operands.
            known: each result, then each residual; None where it is not known.
        """
        results, residuals = split_list(known, [len(self.call.outputs)])
        if any(result is None for result in results):
            # Derivatives go through `restore`. What nothing reads of this is dropped.
            computed = self.call.evaluate(*map(without_tangent, operands))
            pairs = zip(results, computed, strict=True)
            results = [value if result is None else result for result, value in pairs]
        return [*self.restore(operands, results, residuals), *residuals]


def saving_call(equation: Equation) -> SavingCall | None:
    """The saving form of a call; None if it is not a call, or returns no residuals."""
    return getattr(equation.params.get("function"), "saving_call", None)
