"""merge_common(): compute equal operations once."""

from collections.abc import Hashable

from rnnscan.graph.core.bodies import with_bodies
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.rewrites.rewire import rewired
from rnnscan.ir.program import Constant, Equation
from rnnscan.ir.rewrite import merge_equal
from rnnscan.ir.structure import structure_of_array


def merge_common(graph: Graph) -> Graph:
    """Compute each operation on the same values once: common subexpression elimination.

    Equal numbers are the same value. Bodies of loops, branches and functions with rules of their own are rewritten too.
    Operations with effects stay, and so do those whose parameters cannot be compared.

    Args:
        graph: the graph.

    Returns:
        The graph in which all readers read the first of equal values. It has the labels of all of them.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: jnp.sin(2 * x) * jnp.cos(2 * x), 1.0)
        >>> [node.operation for node in rs.graph.merge_common(graph).nodes]
        ['mul', 'sin', 'cos', 'mul']
    """
    graph = with_bodies(graph, merge_common)
    return rewired(graph, *merge_equal(graph.program.equations, _key))


def _key(equation: Equation) -> Hashable:
    operands = tuple(structure_of_array(atom.value) if isinstance(atom, Constant) else atom for atom in equation.inputs)
    return equation.operation, operands, tuple(output.aval for output in equation.outputs)
