"""A function with a custom derivative, in two parts: one that saves residuals, and one that reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from rnnscan.engine.loops.own_derivative import differentiate_as, with_derivative


@dataclass(frozen=True, eq=False)
class Saving:
    """How a function saves the values that its derivative reads.

    Attributes:
        save: `(*arguments) -> (results, residuals)`, pytrees.
        tangents: `(arguments, results, residuals, tangents) -> tangents of the results`. A tangent may be a symbolic
            zero.
        reads: finds for each leaf of the results whether `tangents` reads it.
    """

    save: Callable[..., tuple[Any, Any]]
    tangents: Callable[[Any, Any, Any, Any], Any]
    reads: Callable[[], Sequence[bool]]


@dataclass(frozen=True, eq=False)
class FlatSaving:
    """The two parts for flat operands.

    `save` runs first: it finds the structures.

    Attributes:
        function: the function, in two parts.
        structure: that of the arguments.
        structures: those of the results and of the residuals.
    """

    function: Saving
    structure: Any
    structures: list[Any] = field(default_factory=list)

    def save(self, *operands: Any) -> list[Any]:
        """The leaves of the results, then those of the residuals."""
        parts = differentiate_as(self.function.save, self.function.save)(*jax.tree.unflatten(self.structure, operands))
        self.structures[:] = map(jax.tree.structure, parts)
        return jax.tree.leaves(parts)

    def restore(self, operands: Sequence[Any], results: Sequence[Any], residuals: Sequence[Any]) -> list[Any]:
        """The results as they are, with the derivative that reads the residuals."""

        def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
            arguments, results, residuals = primals
            return results, self.function.tangents(arguments, results, residuals, tangents[0])

        leaves = (operands, results, residuals)
        trees = map(jax.tree.unflatten, (self.structure, *self.structures), leaves)
        return jax.tree.leaves(with_derivative(lambda _arguments, results, _residuals: results, rule)(*trees))
