"""The transfer function of shardings: how the axes of results are sharded over a mesh, from those of operands."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from rnnscan.graph.nodes.names import Name
from rnnscan.graph.nodes.node import Node
from rnnscan.graph.statuses.traced_types import traced_types
from rnnscan.graph.statuses.transfer_bodies import has_bodies, through_bodies
from rnnscan.ir.traits import Kind, traits_of


# The mesh axes of each axis; None: not sharded.
_Axes: TypeAlias = tuple[Any, ...]


def transfer_sharding(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Shardings: the `PartitionSpec` of each result from those of all operands, as JAX infers them. For `infer_status`.

    JAX infers them for the explicit axes of a mesh, whose sizes are taken to divide those of the arrays. Operands that
    are joined are sharded alike along their common axes, and one that is whole along an axis agrees with all others.
    Where JAX asks for the sharding of a result, as for a product over sharded axes, the result is unknown.

    Args:
        node: the node.
        inputs: the specs of what it reads, None for unknown ones and for numbers.
        outputs: the specs of what it makes, likewise.

    Returns:
        The inputs as they are, and the specs of the outputs, each with an entry for every axis.

    Raises:
        ValueError: if two operands that are joined are sharded differently along one axis.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x, w: jnp.tanh(x @ w).T, jnp.ones((4, 3)), jnp.ones((3, 8)))
        >>> known = {"x": P("rows", None), "w": P(None, "units")}
        >>> tuple(rs.graph.infer_status(graph, known, rs.graph.transfer_sharding).known[graph.outputs["result"]])
        ('units', 'rows')
    """
    if has_bodies(node):
        return through_bodies(transfer_sharding, node, inputs, outputs, of_step=_of_step, of_all_steps=_of_all_steps)
    if any(isinstance(name, Name) and spec is None for name, spec in zip(node.inputs, inputs, strict=True)):
        return inputs, outputs
    specs = _agreed(node, [_axes(spec or (), kind) for spec, kind in zip(inputs, node.input_types, strict=True)])
    names_of_each = [*map(_mesh_axes, specs)]
    if any(len(set(names)) < len(names) for names in names_of_each):
        return inputs, outputs
    names = tuple(dict.fromkeys(chain(*names_of_each)))
    mesh = AbstractMesh((1,) * len(names), names, axis_types=(AxisType.Explicit,) * len(names))
    operands = [
        jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        for kind, spec in zip(node.input_types, specs, strict=True)
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        types = traced_types(node, operands)
    if types is None:
        return inputs, outputs
    return inputs, [PartitionSpec(*_axes(kind.sharding.spec, kind)) for kind in types]


def _agreed(node: Node, specs: Sequence[_Axes]) -> Sequence[_Axes]:
    """The specs with whole axes sharded as in the other operands, because JAX asks for equal ones."""
    shape = max((kind.shape for kind in node.input_types), key=len, default=())
    kinds_that_join = (Kind.ELEMENTWISE, Kind.JOIN, Kind.WRITE)
    if traits_of(node.operation).kind not in kinds_that_join:
        return specs
    agreed = [list(spec) for spec in specs]
    for axis, size in enumerate(shape):
        places = [
            place
            for place, kind in enumerate(node.input_types)
            if len(kind.shape) == len(shape) and kind.shape[axis] == size
        ]
        sharded = {specs[place][axis]: node.inputs[place] for place in places if specs[place][axis] is not None}
        if len(sharded) > 1:
            (axes, first), (other_axes, second) = list(sharded.items())[:2]
            raise ValueError(
                f"graph.transfer_sharding: operands of node {node.id}, {node.operation}, must be sharded alike; got "
                f"{axes!r} for {str(first)!r} and {other_axes!r} for {str(second)!r} along axis {axis} of "
                f"{str(node.outputs[0])!r}. Change `known`."
            )
        for place in places:
            agreed[place][axis] = next(iter(sharded), None)
    return [tuple(spec) for spec in agreed]


def _mesh_axes(spec: _Axes) -> list[str]:
    entries = (entry if isinstance(entry, tuple) else (entry,) for entry in spec if entry is not None)
    return [*chain(*entries)]


def _of_step(spec: Any) -> Any:
    return PartitionSpec(*spec[1:]) if len(spec) and spec[0] is None else None


def _of_all_steps(spec: Any) -> Any:
    return PartitionSpec(None, *spec)


def _axes(spec: Any, kind: Any) -> _Axes:
    """An entry for each axis of a type."""
    return (*spec, *(None,) * (len(kind.shape) - len(spec)))
