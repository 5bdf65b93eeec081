"""A graph as a table, for a browser."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.messages import describe
from rnnscan._util.reports import Table
from rnnscan.graph.draw.colors import KINDS
from rnnscan.graph.nodes.names import Name, Operand
from rnnscan.graph.nodes.node import Node
from rnnscan.ir.program import Value


_HEADER = ("value", "operation", "reads", "type", "kind", "node", "bytes")
_TEXT_COLUMNS = 5


def blocks_of(
    title: str,
    nodes: Sequence[Node],
    inputs: Sequence[Name],
    outputs: Mapping[str, Operand],
    values: Mapping[Name, Value],
    kinds: Mapping[Name, str],
) -> Iterator[str | Table]:
    """A title, and a table with a section of the inputs, of the nodes, and of the outputs.

    Args:
        title: the title.
        nodes: the operations.
        inputs: the names of the inputs.
        outputs: place of each result -> its value.
        values: the engine's value of each name.
        kinds: the kind of work of each value; empty if the graph is not of a cell.
    """
    yield title

    def row(value: Any, operation: str, reads: Sequence[Any], name: Operand | None, node: str = "") -> tuple[str, ...]:
        kind = size = type_ = ""
        if isinstance(name, Name):
            type_, kind = describe(values[name].aval), kinds.get(name, "")
            is_sized = all(isinstance(axis, int) for axis in values[name].shape)
            size = readable_bytes(values[name].nbytes) if is_sized else ""
        return (str(value), operation, ", ".join(map(str, reads)), type_, kind, node, size)

    arguments = [row(name, "input", (), name) for name in inputs]
    operations = [
        row(name or "()", node.operation, node.inputs, name, str(node.id))
        for node in nodes
        for name in node.outputs or (None,)
    ]
    results = [row(place, "output", (operand,), operand) for place, operand in outputs.items()]
    sections = [rows for rows in (arguments, operations, results) if rows]
    if sections:
        present = {kinds[name] for name in values if name in kinds}
        legend = {kind: color.meaning for kind, color in KINDS.items() if kind in present}
        fills = {kind: color.fill for kind, color in KINDS.items()}
        yield Table(_HEADER, sections, _TEXT_COLUMNS, fills=fills, legend=legend)
