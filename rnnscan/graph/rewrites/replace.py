"""replace(): a user's function in place of a part of a graph."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._messages import describe, in_words, is_weak, listing
from rnnscan.engine.fission.program import Atom, Equation, Value, values_of
from rnnscan.graph.graph import Graph
from rnnscan.graph.names import Name
from rnnscan.graph.rewrites.rewire import reading, rewired
from rnnscan.graph.trace import trace


def replace(graph: Graph, ids: Iterable[int], function: Callable[..., Any]) -> Graph:
    """Put a function in place of some nodes. Only the types of its results are checked, not their values.

    Args:
        graph: the graph.
        ids: the ids of the nodes, such as `Graph.path` gives. No value may leave them and come back.
        function: takes the inputs of `Graph.subgraph_io(ids)`, in order, and returns its outputs: an array, or a tuple
            of several in order.

    Returns:
        The graph with the function's operations in place of the nodes. Replaced values keep their names.

    Raises:
        ValueError: if there is no such node, if nothing reads the nodes' results, or if a value leaves them and comes
            back.
        TypeError: if the function returns another number of results, or a result of another type.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: 2 * (x * (1 / (1 + jnp.exp(-x)))), 1.0)
        >>> ids = graph.path(["x"], ["mul.1"])
        >>> [node.operation for node in rs.graph.replace(graph, ids, lambda x: x * jax.lax.logistic(x)).nodes]
        ['logistic', 'mul', 'mul']
    """
    inside = set(graph.checked_ids("replace", ids))
    inputs, outputs = graph.subgraph_io(inside)
    if not outputs:
        raise ValueError(
            f"graph.replace: the nodes must make a value that is read; got {listing(map(str, sorted(inside)))}, whose "
            "results nothing reads. Pass other nodes, or use remove_dead_ends."
        )
    before, after = _around(graph, inside)
    own = [graph.value(name) for name in inputs]
    part = _traced(function, own, [(str(name), graph.type_of(name)) for name in outputs])
    read: dict[Atom, Atom] = dict(zip(part.arguments, own, strict=True))
    made = [reading(equation, read) for equation in part.program.equations]
    results = [read.get(atom, atom) for atom in part.program.stacked]
    old = [graph.value(name) for name in outputs]
    same: dict[Atom, Atom] = dict(zip(old, results, strict=True))
    new = {result for equation in made for result in equation.outputs}
    names = dict(graph.names)
    captured = part.program.invariant
    bases = {name.base for name in names.values()}
    free = (f"captured[{number}]" for number in count(len(graph.arrays)))
    free_bases = (base for base in free if base not in bases)
    names.update((value, Name(base)) for value, base in zip(captured, free_bases, strict=False))
    for value, name in zip(results, outputs, strict=True):
        if value in new and isinstance(value, Value):
            names.setdefault(value, name)
    for value in old:
        del names[value]
    size = len(graph.arrays)
    invariant = graph.program.invariant
    graph = dataclasses.replace(
        graph,
        arrays=(*graph.arrays, *part.arrays),
        program=dataclasses.replace(graph.program, invariant=(*invariant[:size], *captured, *invariant[size:])),
    )
    return rewired(graph, [*before, *made, *after], same, names=names)


def _around(graph: Graph, inside: set[int]) -> tuple[list[Equation], list[Equation]]:
    """The nodes to run before and after the ones inside.

    Raises:
        ValueError: if a node outside lies between two inside.
    """
    before, after = [], []
    late: set[Value] = set()
    returning: dict[Value, int] = {}
    has_late_effects = False
    for node_id, equation in enumerate(graph.program.equations):
        operands = values_of(equation.inputs)
        if node_id in inside:
            back = [returning[value] for value in operands if value in returning]
            if back:
                raise ValueError(
                    f"graph.replace: no value may leave the nodes and come back; got node {back[0]}, which is not "
                    f"among them and leads back to node {node_id}. Add it to the nodes."
                )
            late.update(equation.outputs)
        elif not late.isdisjoint(operands) or (equation.effects and has_late_effects):
            after.append(equation)
            late.update(equation.outputs)
            returning.update(dict.fromkeys(equation.outputs, node_id))
            has_late_effects = has_late_effects or bool(equation.effects)
        else:
            before.append(equation)
    return before, after


def _traced(function: Callable[..., Any], inputs: Sequence[Value], outputs: Sequence[tuple[str, Any]]) -> Graph:
    """The graph of the function, if its results have the types of the outputs."""

    def typed(*arguments: Any) -> list[Any]:
        results = function(*arguments)
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(results)]
        if len(leaves) != len(outputs):
            raise TypeError(
                f"graph.replace: the function must return {len(outputs)} results, for "
                f"{listing(name for name, _ in outputs)}; got {len(leaves)} from {in_words(function)}. "
                "`graph.subgraph_io` lists them."
            )
        for leaf, (name, aval) in zip(leaves, outputs, strict=True):
            given = jax.typeof(leaf)
            if (given.shape, given.dtype) != (aval.shape, aval.dtype):
                raise TypeError(
                    f"graph.replace: the result for {name!r} must be {describe(aval)}; got {describe(given)} from "
                    f"{in_words(function)}. Return the type of the value that it replaces."
                )
        return [
            leaf.astype(leaf.dtype) if is_weak(leaf) and not aval.weak_type else leaf
            for leaf, (_, aval) in zip(leaves, outputs, strict=True)
        ]

    return trace(typed, *(value.aval for value in inputs))
