"""remove_dead_ends(): drop what nothing reads."""

from dataclasses import replace

from rnnscan.engine.fission.program import values_of
from rnnscan.graph.graph import Graph


def remove_dead_ends(graph: Graph) -> Graph:
    """Drop every node that no result depends on. Nodes with effects, such as debug prints, and what they read stay.

    The arguments stay as well, so `Graph.to_cell` is called as before.

    Args:
        graph: the graph.

    Returns:
        The graph without dead ends.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: (jnp.tanh(jnp.cos(x)), jnp.sin(x))[1], 1.0)
        >>> [node.operation for node in graph.nodes]
        ['cos', 'tanh', 'sin']
        >>> [node.operation for node in rs.graph.remove_dead_ends(graph).nodes]
        ['sin']
    """
    program = graph.program
    read = set(values_of(program.outputs))
    live = []
    for equation in reversed(program.equations):
        if equation.effects or not read.isdisjoint(equation.outputs):
            live.append(equation)
            read.update(values_of(equation.inputs))
    return graph.rewritten(replace(program, equations=tuple(reversed(live))))
