"""Slices: the equations between values, and what a part of a graph reads and makes."""

from collections.abc import Collection, Mapping, Sequence

from rnnscan.graph.nodes.names import Name, Operand
from rnnscan.graph.nodes.node import Node, SubgraphIO
from rnnscan.ir.program import Equation, Value


def ids_between(equations: Sequence[Equation], inputs: Collection[Value], outputs: Collection[Value]) -> list[int]:
    """The positions of the equations that the outputs depend on, going back no further than the inputs.

    Args:
        equations: all equations, in running order.
        inputs: the values to stop at.
        outputs: the values to compute from them.
    """
    stops = set(inputs)
    wanted = set(outputs) - stops
    ids = []
    for index in range(len(equations) - 1, -1, -1):
        equation = equations[index]
        if not wanted.isdisjoint(equation.outputs):
            ids.append(index)
            wanted.update(atom for atom in equation.inputs if isinstance(atom, Value) and atom not in stops)
    return ids[::-1]


def io_of(
    part: Sequence[Node], returned: Collection[Operand], consumers: Mapping[Name, Sequence[tuple[int, int]]]
) -> SubgraphIO:
    """What some nodes read from outside, and what they make that is read outside or returned.

    Args:
        part: the nodes, in running order.
        returned: the results of the graph.
        consumers: name -> the ids of the nodes that read it, each with the position among its inputs.
    """
    inside = {node.id for node in part}
    written = [name for node in part for name in node.outputs]
    read = dict.fromkeys(name for node in part for name in node.inputs)
    inner, results = set(written), set(returned)
    return SubgraphIO(
        inputs=tuple(name for name in read if isinstance(name, Name) and name not in inner),
        outputs=tuple(
            name for name in written if name in results or any(reader not in inside for reader, _ in consumers[name])
        ),
    )
