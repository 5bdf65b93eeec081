"""infer_status(): facts about values, carried through a graph to a fixpoint."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import Name
from rnnscan.graph.nodes.node import Node


# From a node, and the statuses of its inputs and outputs with None for unknown ones, to the statuses that follow.
Transfer: TypeAlias = Callable[[Node, Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]


@dataclass(frozen=True)
class Statuses:
    """The statuses of a graph's values.

    Attributes:
        known: name -> status.
        unknown: the names of values whose status nothing tells, in the order of the graph.
    """

    known: Mapping[Name, Any]
    unknown: tuple[Name, ...]


def same_status(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The transfer function by which all that a node reads and makes has one status.

    Args:
        node: the node.
        inputs: the statuses of what it reads, None for unknown ones and for numbers.
        outputs: the statuses of what it makes, likewise.

    Returns:
        The first known status for each input, and for each output.
    """
    known = next((status for status in (*inputs, *outputs) if status is not None), None)
    return [known] * len(inputs), [known] * len(outputs)


def infer_status(
    graph: Graph,
    known: Mapping[Name | str, Any],
    transfer: Transfer = same_status,
    *,
    by_operation: Mapping[str, Transfer] | None = None,
) -> Statuses:
    """Carry statuses of some values to all values that they determine, forward and backward, until nothing changes.

    A status is any value but None, such as a memory space or a unit. A transfer function says what the statuses around
    a node tell of each other; `rnnscan.graph.transfer_dtype` and four others are built in. Each value gets
    its status once, and nodes around it are then looked at again, so the time is linear in the graph. A loop's body is
    walked at each look at its node.

    Args:
        graph: the graph.
        known: name of a value -> its status. Names are as in `Graph.value`.
        transfer: `transfer(node, inputs, outputs) -> (inputs, outputs)`, over statuses, with None for unknown ones.
        by_operation: operation -> its transfer function, in place of `transfer`.

    Returns:
        The statuses, and the values that have none.

    Raises:
        ValueError: if a value gets two statuses, if the graph has no such value, or if a transfer function returns
            another number of statuses.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def function(x, y):
        ...     return jnp.sin(jax.device_put(jnp.cos(x), jax.memory.Space.Device)), jnp.tanh(y)
        >>> graph = rs.graph.trace(function, 1.0, 2.0)
        >>> def transferred(node, inputs, outputs):
        ...     return inputs, [node.params["devices"][0].name]
        >>> statuses = rs.graph.infer_status(graph, {"cos.1": "Host"}, by_operation={"device_put": transferred})
        >>> {str(name): status for name, status in statuses.known.items()}
        {'x': 'Host', 'cos.1': 'Host', 'device_put.1': 'Device', 'result[0].1': 'Device'}
        >>> [str(name) for name in statuses.unknown]
        ['y', 'result[1].1']
    """
    inferred: dict[Name, tuple[Any, str]] = {}
    waiting = deque(node.id for node in graph.nodes)
    is_waiting = [True] * len(graph.nodes)
    producers, consumers = graph.producers(), graph.consumers()

    def learn(name: Name, status: Any, source: str) -> None:
        if status is None:
            return
        if name in inferred:
            earlier, earlier_source = inferred[name]
            if earlier != status:
                raise ValueError(
                    f"graph.infer_status: a value must have one status; got {earlier!r} for {str(name)!r} from "
                    f"{earlier_source}, and {status!r} from {source}. Change `known`, or the transfer function."
                )
            return
        inferred[name] = status, source
        around = [node for node, _ in consumers[name]] + ([producers[name][0]] if name in producers else [])
        for node in around:
            if not is_waiting[node]:
                is_waiting[node] = True
                waiting.append(node)

    def status_of(operand: Any) -> Any:
        return inferred[operand][0] if isinstance(operand, Name) and operand in inferred else None

    for value, status in known.items():
        learn(graph.names[graph.value(value, "infer_status")], status, "`known`")
    while waiting:
        node = graph.nodes[waiting.popleft()]
        is_waiting[node.id] = False
        before = [status_of(operand) for operand in node.inputs], [status_of(name) for name in node.outputs]
        function = (by_operation or {}).get(node.operation, transfer)
        after = function(node, *before)
        sizes = [len(statuses) for statuses in after]
        if sizes != [len(node.inputs), len(node.outputs)]:
            raise ValueError(
                f"graph.infer_status: a transfer function must return a status for each of the {len(node.inputs)} "
                f"inputs and {len(node.outputs)} outputs of node {node.id}, {node.operation}; got {sizes[0]} and "
                f"{sizes[1]}. Return None for unknown ones."
            )
        for operand, status in zip((*node.inputs, *node.outputs), (*after[0], *after[1]), strict=True):
            if isinstance(operand, Name):
                learn(operand, status, f"node {node.id}, {node.operation}")
    order = [*graph.names.values()]
    return Statuses(
        {name: inferred[name][0] for name in order if name in inferred}, tuple(n for n in order if n not in inferred)
    )
