"""A graph for networkx."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rnnscan.graph.nodes.names import Name, Operand
from rnnscan.graph.nodes.node import Node


def to_networkx(nodes: Sequence[Node], types: Mapping[Name, Any], returned: Collection[Operand]) -> Any:
    """A bipartite `networkx.DiGraph` of values and operations.

    Args:
        nodes: the operations.
        types: the type of each value.
        returned: the values that are returned.

    Raises:
        ImportError: if networkx is not installed.
    """
    try:
        import networkx
    except ImportError as error:
        raise ImportError(
            "Graph.to_networkx needs networkx, which is not installed. Install it with the extra: "
            'pip install ".[graph]" in the checkout of rnnscan.'
        ) from error
    graph = networkx.DiGraph()
    for name, type_of_it in types.items():
        graph.add_node(name, kind="value", type=type_of_it, output=name in returned)
    for node in nodes:
        graph.add_node(node.id, kind="operation", operation=node.operation)
        graph.add_edges_from((name, node.id) for name in node.inputs if isinstance(name, Name))
        graph.add_edges_from((node.id, name) for name in node.outputs)
    return graph
