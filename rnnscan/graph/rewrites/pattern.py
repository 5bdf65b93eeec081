"""Patterns: functions that are looked for in graphs."""

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np

from rnnscan._util.messages import in_words
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.core.trace import trace
from rnnscan.graph.nodes.names import type_of
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Value


# Shapes for the first trace have this size along each axis: equal, because most functions want equal sizes somewhere,
# and with many divisors, for `split`.
_SIZE = 12
# The first trace is done for every choice of dtypes and ranks, about 5 ms each.
_MOST_CHOICES = 500


@dataclass(frozen=True, eq=False)
class TypedPattern:
    """A pattern that was traced on some types.

    Attributes:
        inputs: its inputs, each with its type; they match any value.
        arrays: value -> the array that the pattern closes over.
        equations: its equations, all of which lead to the first result.
        maker: value -> the equation that makes it, and the position among its outputs.
        results: its results.
    """

    inputs: Mapping[Value, Any]
    arrays: Mapping[Value, Any]
    equations: tuple[Equation, ...]
    maker: Mapping[Value, tuple[Equation, int]]
    results: tuple[Value, ...]

    @property
    def end(self) -> Any:
        """The operation that makes the first result."""
        return self.maker[self.results[0]][0].primitive

    @property
    def shape(self) -> Hashable:
        """A key that is equal for patterns that do the same operations on the same values, of any types."""
        numbers: dict[Atom, int] = {value: index for index, value in enumerate((*self.inputs, *self.arrays))}
        steps = []
        for equation in self.equations:
            steps.append((equation.primitive, tuple(numbers.get(atom) for atom in equation.inputs)))
            numbers.update((value, len(numbers) + index) for index, value in enumerate(equation.outputs))
        return tuple(steps), tuple(numbers[value] for value in self.results)


class Pattern:
    """A function to look for, traced on types as they are asked for, once on each.

    Args:
        asked_by: the caller's name, for messages.
        function: a function of arrays; each argument matches any value.
        types: an example of the types of its arguments; None: arrays with 12 elements along each axis.

    Raises:
        TypeError: if it takes other than positional arguments, or if the number of types is another.
    """

    def __init__(self, asked_by: str, function: Callable[..., Any], types: Sequence[Any] | None) -> None:
        self._asked_by = asked_by
        self._function = function
        self._size = _number_of_arguments(asked_by, function)
        self._example = None if types is None else tuple(map(_as_type, types))
        if self._example is not None and len(self._example) != self._size:
            raise TypeError(
                f"graph.{asked_by}: `types` must have a type for each of the {self._size} arguments of "
                f"{in_words(function)}; got {len(self._example)}. Pass one array or jax.ShapeDtypeStruct for each."
            )
        self._traced: dict[tuple[Any, ...], TypedPattern | None] = {}
        self._problem: Exception | None = None

    def outlines(self, graph: Graph) -> dict[Any, list[TypedPattern]]:
        """What the pattern may look like in a graph, by its last operation. Types and parameters are those of examples.

        Raises:
            ValueError: if there are too many types, or if the function is not a pattern on these types.
        """
        by_shape: dict[Hashable, TypedPattern] = {}
        for examples in (self._of_equal_sizes, self._of_values) if self._example is None else (self._of_example,):
            for types in () if by_shape else examples(graph):
                pattern = self.on(types)
                if pattern is not None:
                    by_shape.setdefault(pattern.shape, pattern)
        by_end: dict[Any, list[TypedPattern]] = {}
        for pattern in by_shape.values():
            by_end.setdefault(pattern.end, []).append(pattern)
        return by_end

    def on(self, types: tuple[Any, ...]) -> TypedPattern | None:
        """The pattern on some types; None if it fails on them, or is none.

        Raises:
            ValueError: if it is none on the types that the user gave.
        """
        if types not in self._traced:
            try:
                graph = trace(lambda *values: jax.tree.leaves(self._function(*values)), *types)
                self._traced[types] = _typed(graph, types)
            except Exception as error:  # The user's function fails on most types, and may raise anything.
                if types == self._example:
                    raise
                self._traced[types], self._problem = None, error
        return self._traced[types]

    def check(self) -> None:
        """Raise an error if the pattern could be traced on no types.

        Raises:
            ValueError: with the last error.
        """
        if self._problem is not None and not any(self._traced.values()):
            raise ValueError(
                f"graph.{self._asked_by}: the pattern must be a function of arrays; {in_words(self._function)} fails "
                f"on all types that the graph has. The last error: {self._problem} Correct the pattern, or pass "
                "`types`, an example of its arguments."
            ) from self._problem

    def _of_example(self, _: Graph) -> Iterator[tuple[Any, ...]]:
        return iter([self._example] if self._example is not None else [])

    def _of_equal_sizes(self, graph: Graph) -> Iterator[tuple[Any, ...]]:
        """All choices of the graph's ranks and dtypes."""
        atoms = (atom for equation in graph.program.equations for atom in equation.inputs)
        kinds = dict.fromkeys((len(atom.shape), atom.dtype) for atom in atoms)
        every = [jax.ShapeDtypeStruct((_SIZE,) * rank, dtype) for rank, dtype in kinds]
        if len(every) ** self._size > _MOST_CHOICES:
            raise ValueError(
                f"graph.{self._asked_by}: the pattern is traced on every choice of ranks and dtypes, at most "
                f"{_MOST_CHOICES:,}; got {len(every)} in the graph for each of {self._size} arguments. Pass `types`, "
                "an example of its arguments."
            )
        return product(every, repeat=self._size)

    def _of_values(self, graph: Graph) -> Iterator[tuple[Any, ...]]:
        """All choices of the types of the graph's values, if they are few: for patterns of certain sizes."""
        every = dict.fromkeys(type_of(atom) for equation in graph.program.equations for atom in equation.inputs)
        return product(every, repeat=self._size) if len(every) ** self._size <= _MOST_CHOICES else iter([])


def _typed(graph: Graph, types: tuple[Any, ...]) -> TypedPattern:
    results = graph.program.stacked
    maker = {
        value: (equation, index) for equation in graph.program.equations for index, value in enumerate(equation.outputs)
    }
    outputs = [atom for atom in results if isinstance(atom, Value) and atom in maker]
    if not results or len(outputs) < len(results):
        raise ValueError("Every result of a pattern must be the result of an operation.")
    equations = needed(graph.program.equations, results)
    if len(equations) > len(needed(equations, results[:1])):
        raise ValueError("Every operation of a pattern must lead to its first result. Return the last value first.")
    if any(equation.effects for equation in equations):
        raise ValueError("A pattern must have no effects, such as debug prints.")
    read = {atom for equation in equations for atom in equation.inputs}
    unread = [str(graph.names[value]) for value in graph.arguments if value not in read]
    if unread:
        raise ValueError(f"A pattern must read all its arguments; it does not read {', '.join(unread)}.")
    arrays = dict(zip(graph.program.invariant, graph.arrays, strict=True))
    inputs = dict(zip(graph.arguments, types, strict=True))
    return TypedPattern(inputs, arrays, tuple(equations), maker, tuple(outputs))


def _number_of_arguments(asked_by: str, function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    wanted = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if any(parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in wanted):
        shown = ", ".join(map(str, wanted))
        raise TypeError(
            f"graph.{asked_by}: a pattern must have positional arguments alone, each for one array; got "
            f"{in_words(function)} of ({shown}). Write a lambda with an argument for each value."
        )
    return len(wanted)


def _as_type(example: Any) -> Any:
    is_array = isinstance(example, jax.Array | np.ndarray | np.generic | complex | float | int)
    return jax.typeof(example) if is_array else example
