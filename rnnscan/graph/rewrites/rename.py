"""rename_input(), rename_output(), fuse_names(): the names of values."""

from collections.abc import Sequence
from typing import TypeVar

from rnnscan._util.messages import listing
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import Name, is_name_equation
from rnnscan.graph.rewrites.rewire import rewired
from rnnscan.ir.program import Atom, Constant, Equation, Value


_Atom = TypeVar("_Atom")


def rename_input(graph: Graph, node: int, position: int, name: str, *, from_producer: bool = False) -> Graph:
    """Rename a value that a node reads.

    The node must be its only reader, because all readers of a value see one name; `from_producer=True` renames it for
    all of them. Names of arguments are for reading a graph: `Graph.to_cell` takes the same arguments as before.

    Args:
        graph: the graph.
        node: the id of the node.
        position: the position among its inputs.
        name: the new name, which no value has.
        from_producer: rename the result of the node that makes it, whoever reads it.

    Returns:
        The graph with the new name.

    Raises:
        ValueError: if the node or the position does not exist, if the name is taken, if the value has other readers, or
            with `from_producer` if no node makes it.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: jnp.sin(jnp.cos(x)), 1.0)
        >>> [str(value) for value in rs.graph.rename_input(graph, 1, 0, "angle").nodes[1].inputs]
        ['angle.1']
    """
    operands = _equation(graph, "rename_input", node).inputs
    atom = _element("rename_input", "inputs", operands, node, position)
    if isinstance(atom, Constant):
        raise ValueError(
            f"graph.rename_input: only values have names; got position {position} of node {node}, the number "
            f"{atom.value}. Choose another position."
        )
    old = graph.names[atom]
    if from_producer:
        if old not in graph.producers():
            raise ValueError(
                f"graph.rename_input: from_producer=True renames the result of a node; got {str(old)!r}, an argument. "
                "Leave from_producer=False."
            )
        return _renamed(graph, "rename_input", atom, name)
    readers = {reader for reader, _ in graph.consumers()[old]}
    places = [place for place, value in graph.outputs.items() if value == old]
    if readers != {node} or places:
        other_readers = [
            *(f"node {reader}" for reader in sorted(readers - {node})),
            *(f"the result {place}" for place in places),
        ]
        raise ValueError(
            f"graph.rename_input: the node must be the only reader of {str(old)!r}; got {', '.join(other_readers)} as "
            "well. Pass from_producer=True to rename it for all readers."
        )
    return _renamed(graph, "rename_input", atom, name)


def rename_output(graph: Graph, node: int, position: int, name: str) -> Graph:
    """Rename a result of a node, for all its readers.

    Args:
        graph: the graph.
        node: the id of the node.
        position: the position among its outputs.
        name: the new name, which no value has.

    Returns:
        The graph with the new name.

    Raises:
        ValueError: if the node or the position does not exist, or if the name is taken.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: jnp.sin(jnp.cos(x)), 1.0)
        >>> {place: str(one) for place, one in rs.graph.rename_output(graph, 1, 0, "height").outputs.items()}
        {'result': 'height.1'}
    """
    results = _equation(graph, "rename_output", node).outputs
    return _renamed(graph, "rename_output", _element("rename_output", "outputs", results, node, position), name)


def fuse_names(graph: Graph) -> Graph:
    """Turn the nodes of `rnnscan.name` into names of the values that they label.

    The value gets the label's name, and every reader reads the value itself. `Graph.to_cell` still emits the label, so
    a memory choice finds it. An argument keeps its name.

    Args:
        graph: the graph.

    Returns:
        The graph without nodes that only label.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: jnp.tanh(rs.name(2 * x, "gates")), 1.0)
        >>> [*map(str, rs.graph.fuse_names(graph).nodes[0].outputs)]
        ['gates.1']
    """
    same: dict[Atom, Atom] = {}
    names, labels = dict(graph.names), dict(graph.labels)
    fused: set[Atom] = {value for value in labels if labels[value]}
    kept = []
    for equation in graph.program.equations:
        labeled = equation.inputs[0] if equation.inputs else None
        value = same.get(labeled, labeled) if labeled is not None else None
        if not is_name_equation(equation) or not isinstance(value, Value):
            kept.append(equation)
            continue
        output = equation.outputs[0]
        same[output] = value
        label = equation.params["name"]
        labels[value] = tuple(dict.fromkeys([*labels.get(value, ()), label, *labels.pop(output, ())]))
        if names[value] in graph.producers() and value not in fused:
            names[value] = names[output]
        fused.add(value)
        del names[output]
    return rewired(graph, kept, same, names=names, labels=labels)


def _renamed(graph: Graph, function: str, value: Value, name: str) -> Graph:
    old = graph.names[value]
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"graph.{function}: the name must be a text of at least one letter; got {name!r}. Pass a text."
        )
    new = Name(name, 1 if old in graph.producers() else 0)
    if name == old.base:
        return graph
    taken = [str(each) for each in graph.names.values() if each.base == name or str(each) in (name, str(new))]
    if taken:
        raise ValueError(
            f"graph.{function}: the new name must be free; got {name!r} for {str(old)!r}, and the graph has "
            f"{listing(taken[:4])}. Choose another name."
        )
    return graph.rewritten(graph.program, names={**graph.names, value: new})


def _equation(graph: Graph, function: str, node: int) -> Equation:
    [node] = graph.checked_ids(function, [node])
    return graph.program.equations[node]


def _element(function: str, which: str, values: Sequence[_Atom], node: int, position: int) -> _Atom:
    if position not in range(len(values)):
        raise ValueError(
            f"graph.{function}: node {node} has {len(values)} {which}; got the position {position}. They count from 0."
        )
    return values[position]
