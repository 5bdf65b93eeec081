"""A graph as a callable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from rnnscan.graph.nodes.names import is_name_equation
from rnnscan.graph.nodes.signature import Signature
from rnnscan.ir.program import Program, Value, read
from rnnscan.naming import name


@dataclass(frozen=True, eq=False, repr=False)
class GraphFunction:
    """A function that runs a program.

    Attributes:
        program: the program.
        signature: the structure of the arguments and of the results.
        arguments: the values of the arguments' leaves.
        arrays: the arrays for the first of `program.invariant`.
        labels: labels of values.
        text: what it is shown as.
    """

    program: Program
    signature: Signature
    arguments: tuple[Value, ...]
    arrays: tuple[Any, ...]
    labels: Mapping[Value, tuple[str, ...]]
    text: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the graph.

        Raises:
            TypeError: if the arguments are not of the types that were traced.
        """
        avals = [value.aval for value in self.arguments]
        leaves = self.signature.leaves_of(arguments, named, avals)
        captured = self.program.invariant[: len(self.arrays)]
        values: dict[Value, Any] = {}
        self._add(values, [*captured, *self.arguments], [*self.arrays, *leaves])
        for equation in self.program.equations:
            operands = [read(atom, values) for atom in equation.inputs]
            if is_name_equation(equation):
                results = [name(operands[0], equation.params["name"])]
            else:
                results = equation.evaluate(*operands)
            self._add(values, equation.outputs, results)
        outputs = [read(atom, values) for atom in (*self.program.new_carry, *self.program.stacked)]
        return jax.tree.unflatten(self.signature.results, outputs)

    def _add(self, values: dict[Value, Any], outputs: Sequence[Value], results: Sequence[Any]) -> None:
        """Add values, each with its labels."""
        for value, result in zip(outputs, results, strict=True):
            for label in self.labels.get(value, ()):
                result = name(result, label)
            values[value] = result

    def __repr__(self) -> str:
        return f"<function of {self.text}>"
