"""Statuses that rnnscan and JAX know: types, the kind of work, and what the rule of memory keeps."""

from collections.abc import Callable
from typing import Any, Literal

from rnnscan._util.messages import listing, nearest
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.facts import kept_by_rule, kinds_of_work, labels_of
from rnnscan.graph.nodes.names import Name
from rnnscan.memory import Memory


_OF_TYPE: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda aval: aval.dtype,
    "memory_space": lambda aval: getattr(aval, "memory_space", None),
    "sharding": lambda aval: getattr(aval, "sharding", None),
}


def status_of_types(graph: Graph, which: Literal["dtype", "memory_space", "sharding"]) -> dict[Name, Any]:
    """A part of each value's type, which JAX infers while tracing.

    Args:
        graph: the graph.
        which: "dtype", "memory_space" or "sharding".

    Returns:
        Name -> dtype, memory space or sharding.

    Raises:
        ValueError: if `which` is none of them.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: x > 0, jnp.float32(1))
        >>> {str(name): str(dtype) for name, dtype in rs.graph.status_of_types(graph, "dtype").items()}
        {'x': 'float32', 'result.1': 'bool'}
    """
    if which not in _OF_TYPE:
        raise ValueError(
            f"graph.status_of_types: `which` must be one of {listing(_OF_TYPE)}; got {which!r}."
            + nearest(which, _OF_TYPE)
        )
    return {name: _OF_TYPE[which](value.aval) for value, name in graph.names.items()}


def status_of_work(graph: Graph) -> dict[Name, str]:
    """The kind of work that makes each value when the cell is scanned, as `rnnscan.explain` has it.

    Args:
        graph: the graph of a cell. For any other function, work is invariant or parallel.

    Returns:
        Name -> "invariant", "parallel", "linear", "elementwise" or "recurrent". Parameters and unchanged carry leaves
        are invariant, inputs are parallel, and a carry leaf is of the kind of its loop.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def cell(params, carry, x):
        ...     carry = jnp.exp(params) * carry + jnp.sin(x)
        ...     return carry, jnp.tanh(carry)
        >>> graph = rs.graph.trace(cell, jnp.ones(3), jnp.zeros(3), jnp.ones(3))
        >>> [f"{name}: {kind}" for name, kind in rs.graph.status_of_work(graph).items() if name.version]
        ['exp.1: invariant', 'mul.1: linear', 'sin.1: parallel', 'carry.1: linear', 'y.1: parallel']
    """
    return {graph.names[value]: kind for value, kind in kinds_of_work(graph.program, graph.names).items()}


def status_of_memory(graph: Graph, memory: Memory = Memory()) -> dict[Name, str]:
    """What the rule of memory does with each value between the forward and the backward pass of a scan.

    Arguments, results and labeled values are kept; labels in `recompute`, and values without one, are recomputed. An
    engine keeps no more than that: `rnnscan.memory_report` counts what a plan keeps.

    Args:
        graph: the graph of a cell.
        memory: the memory choice. Its `segment` and `chunk` change nothing here.

    Returns:
        Name -> "kept", "recomputed" or "offloaded".

    Raises:
        ValueError: if the choice has a name that the graph does not have.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def cell(params, carry, x):
        ...     carry = jnp.tanh(rs.name(params * carry + x, "gates"))
        ...     return carry, carry
        >>> graph = rs.graph.fuse_names(rs.graph.trace(cell, 1.0, 2.0, 3.0))
        >>> memory = rs.Memory(recompute=("gates",))
        >>> [f"{name}: {kept}" for name, kept in rs.graph.status_of_memory(graph, memory).items() if name.version]
        ['mul.1: recomputed', 'gates.1: recomputed', 'carry.1: kept']
    """
    labels = labels_of(graph.program, graph.labels)
    statuses = kept_by_rule(graph.program, labels, graph.names, memory, "status_of_memory")
    return {graph.names[value]: status for value, status in statuses.items()}
