"""Where a pattern is in a graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax

from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import Name, Operand, operand, type_of
from rnnscan.graph.rewrites.pattern import Pattern, TypedPattern
from rnnscan.ir.program import Atom, Constant, Equation, Value
from rnnscan.ir.structure import structure_of_array, structure_of_operation


# These give the same result with their two operands swapped.
_COMMUTATIVE = frozenset({"add", "add_any", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})
# What is left to compare: an atom of the pattern, an atom of the graph, and the rest.
_Tasks: TypeAlias = tuple[Atom, Atom, Any] | None


class Match(NamedTuple):
    """A part of a graph that a pattern matches.

    Attributes:
        ids: the ids of its nodes, in order.
        inputs: what the pattern's arguments are.
        outputs: what the pattern's results are.
    """

    ids: tuple[int, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Name, ...]


@dataclass(frozen=True, eq=False)
class Site:
    """A match, in the engine's values.

    Attributes:
        ids: the ids of its nodes.
        inputs: what the pattern's arguments are.
        outputs: what the pattern's results are.
        position: the id of the first node whose result is read outside; replacements go there.
    """

    ids: frozenset[int]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    position: int

    def named(self, names: Mapping[Value, Name]) -> Match:
        """The match, by the names of values."""
        inputs = tuple(operand(atom, names) for atom in self.inputs)
        return Match(tuple(sorted(self.ids)), inputs, tuple(names[value] for value in self.outputs))


def sites(graph: Graph, pattern: Pattern) -> list[Site]:
    """The matches of a pattern that do not overlap, in the order of their last nodes; of two that overlap, the earlier.

    Args:
        graph: the graph.
        pattern: the pattern.
    """
    if not graph.nodes:
        return []
    matcher, matched = _Matcher(graph), []
    outlines = pattern.outlines(graph)
    for node_id, equation in enumerate(graph.program.equations):
        for outline in outlines.get(equation.primitive, ()):
            site = matcher.site(outline, pattern, node_id)
            if site is not None:
                matcher.taken.update(site.ids)
                matched.append(site)
                break
    return matched


class _Matcher:
    """Compares parts of a graph with patterns."""

    def __init__(self, graph: Graph) -> None:
        self.taken: set[int] = set()
        self._equations = graph.program.equations
        self._labels = graph.labels
        self._returned = {atom for atom in graph.program.outputs if isinstance(atom, Value)}
        self._maker: dict[Atom, tuple[int, int]] = {}
        self._readers: dict[Atom, list[int]] = {}
        for node_id, equation in enumerate(self._equations):
            self._maker.update((value, (node_id, index)) for index, value in enumerate(equation.outputs))
            for atom in equation.inputs:
                self._readers.setdefault(atom, []).append(node_id)
        captured = graph.program.invariant
        self._arrays = dict(zip(captured, graph.arrays, strict=False))
        self._operations: dict[Equation, Any] = {}

    def site(self, outline: TypedPattern, pattern: Pattern, node_id: int) -> Site | None:
        """The match whose first result the node makes, or None.

        Args:
            outline: the pattern on types of an example. It says which values the inputs could be.
            pattern: the pattern, which is then traced on their types.
            node_id: the id of the node.
        """
        for bound in self._bindings(outline, node_id, exact=False):
            types = tuple(type_of(bound[value]) for value in outline.inputs)
            typed = pattern.on(types)
            if typed is None:
                continue
            for exactly in self._bindings(typed, node_id, exact=True):
                site = self._sound(typed, exactly)
                if site is not None:
                    return site
        return None

    def _bindings(self, pattern: TypedPattern, node_id: int, *, exact: bool) -> Iterator[dict[Atom, Atom]]:
        """The atoms of the graph for those of the pattern, one dictionary for each order of commutative operands.

        Args:
            pattern: the pattern.
            node_id: the node that makes its first result.
            exact: compare types, numbers and parameters too.
        """
        last, index = pattern.maker[pattern.results[0]]
        if last.primitive is not self._equations[node_id].primitive:
            return
        first: _Tasks = (pattern.results[0], self._equations[node_id].outputs[index], None)
        alternatives: list[tuple[_Tasks, dict[Atom, Atom]]] = [(first, {})]
        while alternatives:
            tasks, bound = alternatives.pop()
            while tasks is not None:
                wanted, candidate, tasks = tasks
                if wanted in bound:
                    if not _same(bound[wanted], candidate):
                        break
                    continue
                if not self._could_match(pattern, wanted, candidate, exact):
                    break
                bound[wanted] = candidate
                if not isinstance(wanted, Value) or wanted not in pattern.maker:
                    continue
                equation, other = pattern.maker[wanted][0], self._equations[self._maker[candidate][0]]
                bound.update(zip(equation.outputs, other.outputs, strict=True))
                orders = self._orders(pattern, equation, other, exact)
                if not orders:
                    break
                for order in orders[1:]:
                    alternatives.append((_more(equation.inputs, order, tasks), dict(bound)))
                tasks = _more(equation.inputs, orders[0], tasks)
            else:
                yield bound

    def _orders(
        self, pattern: TypedPattern, wanted: Equation, candidate: Equation, exact: bool
    ) -> list[Sequence[Atom]]:
        """The orders of the given operands that could match."""
        orders: list[Sequence[Atom]] = [candidate.inputs]
        if wanted.name in _COMMUTATIVE and len(candidate.inputs) == 2:
            orders.append(candidate.inputs[::-1])
        return [
            order
            for order in orders
            if all(self._could_match(pattern, *pair, exact) for pair in zip(wanted.inputs, order, strict=True))
        ]

    def _could_match(self, pattern: TypedPattern, wanted: Atom, candidate: Atom, exact: bool) -> bool:
        """Whether the atoms match as far as one can tell from them and their equations alone."""
        if isinstance(wanted, Constant):
            return isinstance(candidate, Constant) and (not exact or _same(wanted, candidate))
        if wanted in pattern.arrays:
            return candidate in self._arrays and _same_array(pattern.arrays[wanted], self._arrays[candidate])
        if wanted in pattern.inputs:
            types = pattern.inputs[wanted], type_of(candidate)
            return not exact or (types[0].shape, types[0].dtype) == (types[1].shape, types[1].dtype)
        if candidate not in self._maker:
            return False
        equation, index = pattern.maker[wanted]
        node_id, position = self._maker[candidate]
        other = self._equations[node_id]
        if index != position or equation.primitive is not other.primitive or other.effects:
            return False
        if len(equation.inputs) != len(other.inputs) or node_id in self.taken:
            return False
        return not exact or bool(self._operation(equation) == self._operation(other))

    def _operation(self, equation: Equation) -> Any:
        if equation not in self._operations:
            self._operations[equation] = structure_of_operation(equation)
        return self._operations[equation]

    def _sound(self, pattern: TypedPattern, bound: Mapping[Atom, Atom]) -> Site | None:
        """The match, if nothing outside reads its inner values, and its inputs are there where it is replaced."""
        values = {bound[value] for value in pattern.maker if value in bound}
        ids = frozenset(self._maker[value][0] for value in values)
        inputs = tuple(bound[value] for value in pattern.inputs)
        outputs = tuple(value for value in (bound[result] for result in pattern.results) if isinstance(value, Value))
        positions = [self._maker[outputs[0]][0]]
        for node_id in ids:
            for value in self._equations[node_id].outputs:
                if self._is_read_outside(value, ids):
                    if value not in outputs:
                        return None
                    positions.append(node_id)
        makers = [self._maker.get(atom, (-1, 0))[0] for atom in inputs]
        position = min(positions)
        if any(maker in ids or maker >= position for maker in makers):
            return None
        return Site(ids, inputs, outputs, position)

    def _is_read_outside(self, value: Value, ids: frozenset[int]) -> bool:
        """Whether a value is read outside of the nodes. A label counts: it is there for a memory choice."""
        readers = self._readers.get(value, ())
        return value in self._returned or value in self._labels or any(reader not in ids for reader in readers)


def _more(wanted: Sequence[Atom], candidates: Sequence[Atom], tasks: _Tasks) -> _Tasks:
    for pair in zip(reversed(wanted), reversed(candidates), strict=True):
        tasks = (*pair, tasks)
    return tasks


def _same(atom: Atom, other: Atom) -> bool:
    if isinstance(atom, Constant) and isinstance(other, Constant):
        return _same_array(atom.value, other.value)
    return atom is other


def _same_array(array: Any, other: Any) -> bool:
    if array is other:
        return True
    if isinstance(array, jax.core.Tracer) or isinstance(other, jax.core.Tracer):
        return False
    return structure_of_array(array) == structure_of_array(other)
