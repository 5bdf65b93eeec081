"""A user's function in place of parts of a graph."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import describe, in_words, is_weak, listing
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.core.trace import trace
from rnnscan.graph.nodes.names import Name, type_of
from rnnscan.graph.rewrites.rewire import rewired
from rnnscan.ir.program import Atom, Equation, Origin, Value
from rnnscan.ir.rewrite import replace_inputs


class Substitution:
    """Collects equations of a function in place of parts of a graph. The function is traced once for equal types.

    Args:
        graph: the graph.
        function: takes the inputs of a part, and returns its outputs: an array, or a pytree of several in order.
    """

    def __init__(self, graph: Graph, function: Callable[..., Any]) -> None:
        self._graph = graph
        self._function = function
        self._names = dict(graph.names)
        self._same: dict[Atom, Atom] = {}
        self._parts: dict[Any, Graph] = {}

    def put(self, inputs: Sequence[Atom], outputs: Sequence[Value], origin: Origin) -> list[Equation]:
        """The function's equations for one part, whose outputs are then read from them.

        Args:
            inputs: what the part reads.
            outputs: what it makes that is read elsewhere.
            origin: where the part was traced, for the named scopes around it.

        Raises:
            TypeError: if the function returns another number of results, or a result of another type.
        """
        inputs = [self._same.get(atom, atom) for atom in inputs]
        types = [type_of(atom) for atom in inputs]
        key = (*types, *(value.aval for value in outputs))
        if key not in self._parts:
            wanted = [(str(self._graph.names[value]), value.aval) for value in outputs]
            self._parts[key] = _traced(self._function, types, wanted)
        part = self._parts[key]
        atoms: dict[Atom, Atom] = dict(zip(part.arguments, inputs, strict=True))
        equations = []
        for equation in part.program.equations:
            results = tuple(Value(value.aval) for value in equation.outputs)
            scoped = equation.origin.within(origin.name_stack)
            equations.append(dataclasses.replace(replace_inputs(equation, atoms), outputs=results, origin=scoped))
            atoms.update(zip(equation.outputs, results, strict=True))
        new = {value for equation in equations for value in equation.outputs}
        for value, result in zip(outputs, (atoms.get(atom, atom) for atom in part.program.stacked), strict=True):
            if value in self._same:  # The pattern returns it twice.
                continue
            self._same[value] = result
            name = self._names.pop(value)
            if isinstance(result, Value) and result in new:
                self._names.setdefault(result, name)
        return equations

    def finish(self, equations: Iterable[Equation]) -> Graph:
        """The graph with other equations, in which all readers of the parts' outputs read the function's results.

        Args:
            equations: all equations, in running order.
        """
        parts, graph = self._parts.values(), self._graph
        captured = [value for part in parts for value in part.program.invariant]
        taken = {name.base for name in self._names.values()}
        free = (base for number in count(len(graph.arrays)) if (base := f"captured[{number}]") not in taken)
        self._names.update((value, Name(base)) for value, base in zip(captured, free, strict=False))
        size, invariant = len(graph.arrays), graph.program.invariant
        graph = dataclasses.replace(
            graph,
            arrays=(*graph.arrays, *(array for part in parts for array in part.arrays)),
            program=dataclasses.replace(graph.program, invariant=(*invariant[:size], *captured, *invariant[size:])),
        )
        return rewired(graph, equations, self._same, names=self._names)


def _traced(function: Callable[..., Any], types: Sequence[Any], outputs: Sequence[tuple[str, Any]]) -> Graph:
    """The graph of the function, if its results have the types of the outputs."""

    def typed(*arguments: Any) -> list[Any]:
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(function(*arguments))]
        if len(leaves) != len(outputs):
            raise TypeError(
                f"graph.replace: the function must return {len(outputs)} results, for "
                f"{listing(name for name, _ in outputs)}; got {len(leaves)} from {in_words(function)}. "
                "Return one array for each value that it replaces."
            )
        for leaf, (name, aval) in zip(leaves, outputs, strict=True):
            actual = jax.typeof(leaf)
            if (actual.shape, actual.dtype) != (aval.shape, aval.dtype):
                raise TypeError(
                    f"graph.replace: the result for {name!r} must be {describe(aval)}; got {describe(actual)} from "
                    f"{in_words(function)}. Return the type of the value that it replaces."
                )
        return [
            leaf.astype(leaf.dtype) if is_weak(leaf) and not aval.weak_type else leaf
            for leaf, (_, aval) in zip(leaves, outputs, strict=True)
        ]

    return trace(typed, *types)
