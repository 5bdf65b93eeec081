"""Statuses through loops, branches and calls: what holds in the body holds for the node."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from rnnscan.graph.core.bodies import graph_of_body, program_of_body
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import Name
from rnnscan.graph.nodes.node import Node
from rnnscan.graph.statuses.status import Transfer, infer_status
from rnnscan.ir.bodies import BODIES, carry_of_scan


# From one status to another.
Change: TypeAlias = Callable[[Any], Any]


def has_bodies(node: Node) -> bool:
    """Whether a node has bodies."""
    return node.operation in BODIES


def through_bodies(
    transfer: Transfer,
    node: Node,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    of_step: Change = lambda status: status,
    of_all_steps: Change = lambda status: status,
) -> tuple[Sequence[Any], Sequence[Any]]:
    """The statuses that follow from those in the bodies of a node. A leaf of a carry has one status at all steps.

    Args:
        transfer: the transfer function for the nodes of the bodies.
        node: the node.
        inputs: the statuses of what it reads.
        outputs: the statuses of what it makes.
        of_step: from the status of a value that is scanned over to that of one step of it.
        of_all_steps: the other way around.
    """
    statuses, types = [*inputs, *outputs], [*node.input_types, *node.output_types]
    for body, places in _bodies(node):
        operands = [*map(body.names.__getitem__, body.program.known), *body.outputs.values()]
        wires = [
            (name, place, len(types[place].shape) > len(body.type_of(name).shape))
            for name, place in zip(operands, places, strict=True)
            if isinstance(name, Name) and place is not None
        ]
        known: dict[Name | str, Any] = {}
        for name, place, is_scanned in wires:
            if statuses[place] is not None:
                known.setdefault(name, of_step(statuses[place]) if is_scanned else statuses[place])
        known = {name: status for name, status in known.items() if status is not None}
        inner_statuses = infer_status(body, known, transfer).known
        for name, place, is_scanned in wires:
            if name in inner_statuses:
                statuses[place] = of_all_steps(inner_statuses[name]) if is_scanned else inner_statuses[name]
    for before, after in _carry(node):
        statuses[after] = statuses[before] = statuses[before] if statuses[before] is not None else statuses[after]
    return statuses[: len(inputs)], statuses[len(inputs) :]


def _bodies(node: Node) -> Iterator[tuple[Graph, list[int | None]]]:
    """The bodies, and for each of their inputs and outputs the place among the node's inputs and outputs."""
    first = len(node.inputs)
    every = list(range(first + len(node.outputs)))
    for parameter in BODIES[node.operation]:
        bodies = node.params[parameter]
        for body in bodies if isinstance(bodies, tuple | list) else [bodies]:
            if node.operation == "cond":
                yield graph_of_body(body), [*every[1:]]
            elif node.operation != "while":
                yield graph_of_body(body), [*every]
            else:
                of_cond, of_body = node.params["cond_nconsts"], node.params["body_nconsts"]
                carry = every[of_cond + of_body : first]
                if parameter == "cond_jaxpr":
                    yield graph_of_body(body), [*every[:of_cond], *carry, None]
                else:
                    yield graph_of_body(body), [*every[of_cond : of_cond + of_body], *carry, *every[first:]]


def _carry(node: Node) -> list[tuple[int, int]]:
    """The places of each leaf of a loop's carry, before and after the loop."""
    first = len(node.inputs)
    if node.operation == "while":
        return [(first - len(node.outputs) + index, first + index) for index in range(len(node.outputs))]
    if node.operation != "scan":
        return []
    body = program_of_body(node.params["jaxpr"])
    carry = carry_of_scan(body.known, body.stacked, node.input_types, node.output_types)
    return [(place, first + index) for index, place in enumerate(carry)]
