"""remove_dead_ends(): drop what nothing reads."""

from dataclasses import replace

from rnnscan.graph.core.bodies import with_bodies
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.rewrites.unused_results import without_unused_results
from rnnscan.ir.program import values_of


def remove_dead_ends(graph: Graph) -> Graph:
    """Drop every node that no result depends on. Nodes with effects, such as debug prints, and what they read stay.

    The arguments stay as well, so `Graph.to_cell` is called as before. A scan, while loop or cond loses the results
    that nothing reads, carry leaves among them, and the operations that only these need. Bodies of all kinds
    lose their dead ends.

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
            equation = without_unused_results(equation, read)
            live.append(equation)
            read.update(equation.reads)
    graph = graph.rewritten(replace(program, equations=tuple(reversed(live))))
    return with_bodies(graph, remove_dead_ends)
