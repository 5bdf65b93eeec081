"""What rewrites share: readers of one value read another."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import Name
from rnnscan.ir.program import Atom, Equation, Value, inputs_of, values_of
from rnnscan.ir.rewrite import replace_inputs, replace_outputs


def rewired(
    graph: Graph,
    equations: Iterable[Equation],
    same: Mapping[Atom, Atom],
    *,
    names: Mapping[Value, Name] | None = None,
    labels: Mapping[Value, tuple[str, ...]] | None = None,
) -> Graph:
    """The graph with other equations, in which every reader of a value reads the same value elsewhere.

    Args:
        graph: the graph.
        equations: its equations, in running order.
        same: value -> the value to read in its place, which is not itself replaced. It gets the labels as well.
        names: names to hold in place of the graph's.
        labels: labels to hold in place of the graph's.
    """
    held: dict[Value, tuple[str, ...]] = {}
    for value, value_labels in (graph.labels if labels is None else labels).items():
        target = same.get(value, value)
        if isinstance(target, Value):
            held[target] = tuple(dict.fromkeys([*held.get(target, ()), *value_labels]))
    program = replace(
        replace_outputs(graph.program, same),
        equations=tuple(replace_inputs(equation, same) for equation in equations),
    )
    return graph.rewritten(program, names=names, labels=held)


def drop_left_over(graph: Graph, before: Graph, operations: Collection[str]) -> Graph:
    """Drop nodes of some operations that nothing reads any more. Dead ends that were there before stay.

    Args:
        graph: the graph.
        before: the graph before it was rewritten.
        operations: names of operations without effects.
    """
    was_read = {*values_of(before.program.outputs), *inputs_of(before.program.equations)}
    read = set(values_of(graph.program.outputs))
    kept = []
    for equation in reversed(graph.program.equations):
        unread = read.isdisjoint(equation.outputs)
        if equation.name in operations and unread and not was_read.isdisjoint(equation.outputs):
            continue
        kept.append(equation)
        read.update(equation.reads)
    return graph.rewritten(replace(graph.program, equations=tuple(reversed(kept))))
