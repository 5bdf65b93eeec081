"""A graph as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from rnnscan._util.messages import describe
from rnnscan.graph.nodes.names import Name, Operand
from rnnscan.graph.nodes.node import Node


# Longer parameters are left out: jaxprs, and numbers of dimensions.
_LONGEST_PARAMETER = 20
# Parameters that the type of the result tells.
_TOLD_BY_TYPE = frozenset({"preferred_element_type", "new_dtype", "dtype", "weak_type", "shape", "new_sizes"})
_UNSET = frozenset({"None", "False", "()"})


def as_text(
    nodes: Sequence[Node], inputs: Sequence[Name], outputs: Mapping[str, Operand], types: Mapping[Name, Any]
) -> str:
    """Inputs, nodes and outputs, one a line.

    Args:
        nodes: the operations.
        inputs: the names of the inputs.
        outputs: place of each result -> its value.
        types: the type of each value.
    """
    width = max((len(str(name)) for name in inputs), default=0)
    lines = ["inputs", *(f"  {name!s:{width}} : {describe(types[name])}" for name in inputs), "nodes"]
    results = [", ".join(map(str, node.outputs)) or "()" for node in nodes]
    calls = [f"{node.operation}{_parameters(node)}({', '.join(map(str, node.inputs))})" for node in nodes]
    digits, width, longest = len(str(len(nodes) - 1)), _longest(results), _longest(calls)
    for node, result, call in zip(nodes, results, calls, strict=True):
        kinds = ", ".join(describe(types[name]) for name in node.outputs) or "()"
        lines.append(f"  {node.id:{digits}}  {result:{width}} = {call:{longest}} : {kinds}")
    width = _longest(list(outputs))
    lines += ["outputs", *(f"  {place:{width}} = {value}" for place, value in outputs.items())]
    return "\n".join(lines)


def _longest(texts: Sequence[str], most: int = 60) -> int:
    """The width of a column. Longer texts stick out."""
    return max((len(text) for text in texts if len(text) <= most), default=0)


def _parameters(node: Node) -> str:
    """The short parameters that are set."""
    shown = []
    for name, value in sorted(node.params.items()):
        text = str(value)
        if name not in _TOLD_BY_TYPE and text not in _UNSET and len(text) <= _LONGEST_PARAMETER and "\n" not in text:
            shown.append(f"{name}={text}")
    return f"[{', '.join(shown)}]" if shown else ""
