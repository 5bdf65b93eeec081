"""The transfer function of shardings: how the axes of results are sharded over a mesh, from those of operands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec

from rnnscan.graph.nodes.names import Name
from rnnscan.graph.nodes.node import Node
from rnnscan.graph.rewrites.reshapes import groups
from rnnscan.graph.statuses.transfer_bodies import has_bodies, through_bodies
from rnnscan.ir.traits import Kind, names_of


# The mesh axes of each axis; None: not sharded.
_Axes: TypeAlias = tuple[Any, ...]
_Rule: TypeAlias = Callable[[Node, Sequence[_Axes]], _Axes | None]


def transfer_sharding(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Shardings: the `PartitionSpec` of each result from those of all operands, as JAX infers them. For `infer_status`.

    Axes that several operands have are sharded as the operands say. An operand that is whole along an axis agrees with
    every other one; two that are sharded differently do not. An axis that is summed over, or joined with another, must
    be whole, else the result is unknown, and so are those of operations without a rule, such as convolutions.

    Args:
        node: the node.
        inputs: the specs of what it reads, None for unknown ones and for numbers.
        outputs: the specs of what it makes, likewise.

    Returns:
        The inputs as they are, and the specs of the outputs, each with an entry for every axis.

    Raises:
        ValueError: if two operands are sharded differently along one axis.

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
    rule = _RULES.get(node.operation)
    specs = [
        _whole(kind) if not isinstance(operand, Name) else None if spec is None else _axes(spec, kind)
        for operand, spec, kind in zip(node.inputs, inputs, node.input_types, strict=True)
    ]
    every = [spec for spec in specs if spec is not None]
    entries = rule(node, every) if rule is not None and len(every) == len(specs) else None
    if entries is None or not _uses_each_once(entries):
        return inputs, outputs
    return inputs, [PartitionSpec(*entries[: len(kind.shape)]) for kind in node.output_types]


def _uses_each_once(axes: _Axes) -> bool:
    """Whether no axis of the mesh shards two axes of an array."""
    used = [name for entry in axes if entry is not None for name in (entry if isinstance(entry, tuple) else (entry,))]
    return len(set(used)) == len(used)


def _of_step(spec: Any) -> Any:
    return PartitionSpec(*spec[1:]) if len(spec) and spec[0] is None else None


def _of_all_steps(spec: Any) -> Any:
    return PartitionSpec(None, *spec)


def _whole(kind: Any) -> _Axes:
    return (None,) * len(kind.shape)


def _axes(spec: Any, kind: Any) -> _Axes:
    return (*spec, *_whole(kind)[len(spec) :])


def _joined(node: Node, specs: Sequence[_Axes], axes: Sequence[Sequence[tuple[int, int]]]) -> _Axes:
    """For each axis of the result, how it is sharded in the operands that have it: positions of operands and axes."""
    entries = []
    for axis, places in enumerate(axes):
        operand_of = {specs[index][place]: index for index, place in places if specs[index][place] is not None}
        if len(operand_of) > 1:
            (one, first), (other, second) = list(operand_of.items())[:2]
            raise ValueError(
                f"graph.transfer_sharding: operands of node {node.id}, {node.operation}, must be sharded alike; got "
                f"{one!r} for {str(node.inputs[first])!r} and {other!r} for {str(node.inputs[second])!r} along axis "
                f"{axis} of {str(node.outputs[0])!r}. Change `known`."
            )
        entries.append(next(iter(operand_of), None))
    return tuple(entries)


def _elementwise(node: Node, specs: Sequence[_Axes]) -> _Axes:
    shape = node.output_types[0].shape
    operands = [index for index, kind in enumerate(node.input_types) if len(kind.shape) == len(shape)]
    return _joined(
        node,
        specs,
        [
            [(index, axis) for index in operands if node.input_types[index].shape[axis] == shape[axis]]
            for axis in range(len(shape))
        ],
    )


def _transposed(node: Node, specs: Sequence[_Axes]) -> _Axes:
    return tuple(specs[0][axis] for axis in node.params["permutation"])


def _broadcast(node: Node, specs: Sequence[_Axes]) -> _Axes:
    shape = node.output_types[0].shape
    entries: list[Any] = [None] * len(shape)
    for axis, place in enumerate(node.params["broadcast_dimensions"]):
        if node.input_types[0].shape[axis] == shape[place]:
            entries[place] = specs[0][axis]
    return tuple(entries)


def _reduced(node: Node, specs: Sequence[_Axes]) -> _Axes:
    gone = node.params["axes"]
    return tuple(entry for axis, entry in enumerate(specs[0]) if axis not in gone)


def _squeezed(node: Node, specs: Sequence[_Axes]) -> _Axes:
    gone = node.params["dimensions"]
    return tuple(entry for axis, entry in enumerate(specs[0]) if axis not in gone)


def _reshaped(node: Node, specs: Sequence[_Axes]) -> _Axes | None:
    new_entries: list[Any] = [None] * len(node.output_types[0].shape)
    if node.params.get("dimensions") is not None:
        return None
    for before, after in groups(node.input_types[0].shape, node.output_types[0].shape):
        entries = [specs[0][axis] for axis in before]
        if len(before) == len(after) == 1:
            new_entries[after[0]] = entries[0]
        elif any(entry is not None for entry in entries):
            return None
    return tuple(new_entries)


def _resized(node: Node, specs: Sequence[_Axes]) -> _Axes | None:
    """Axes that keep their size are sharded as before, and others must be whole."""
    pairs = zip(specs[0], node.input_types[0].shape, node.output_types[0].shape, strict=True)
    entries = [(entry, before == after) for entry, before, after in pairs]
    return tuple(entry for entry, _ in entries) if all(same or entry is None for entry, same in entries) else None


def _along(*parameters: str) -> _Rule:
    """Of an operation along some axes, which must be whole."""

    def rule(node: Node, specs: Sequence[_Axes]) -> _Axes | None:
        parameter_axes = [node.params[name] for name in parameters if name in node.params]
        axes = {axis for one in parameter_axes for axis in (one if isinstance(one, tuple | list) else (one,))}
        operands = [index for index, kind in enumerate(node.input_types) if kind.shape]
        if any(specs[index][axis] is not None for index in operands for axis in axes):
            return None
        rank = len(node.input_types[0].shape)
        return _joined(node, specs, [[(index, axis) for index in operands] for axis in range(rank)])

    return rule


def _stacked(node: Node, specs: Sequence[_Axes]) -> _Axes:
    axis, operands = node.params["axis"], range(len(specs))
    axes = [[(index, place) for index in operands] for place in range(len(specs[0]))]
    return _joined(node, specs, [*axes[:axis], [], *axes[axis:]])


def _unstacked(node: Node, specs: Sequence[_Axes]) -> _Axes | None:
    axis = node.params["axis"]
    return (*specs[0][:axis], *specs[0][axis + 1 :]) if specs[0][axis] is None else None


def _product(node: Node, specs: Sequence[_Axes]) -> _Axes | None:
    (contracted, batch), out_sharding = node.params["dimension_numbers"], node.params.get("out_sharding")
    if out_sharding is not None:
        return _axes(out_sharding.spec, node.output_types[0])
    if any(specs[side][axis] is not None for side in (0, 1) for axis in contracted[side]):
        return None
    free = [
        [(side, axis)]
        for side in (0, 1)
        for axis in range(len(node.input_types[side].shape))
        if axis not in (*contracted[side], *batch[side])
    ]
    return _joined(node, specs, [[(0, one), (1, other)] for one, other in zip(*batch, strict=True)] + free)


def _unsharded(node: Node, specs: Sequence[_Axes]) -> _Axes:
    return _whole(node.output_types[0])


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(names_of(Kind.ELEMENTWISE, Kind.SAME), _elementwise),
    **dict.fromkeys(names_of(Kind.REDUCE), _reduced),
    **dict.fromkeys(("slice", "pad", "dynamic_slice", "dynamic_update_slice", "tile"), _resized),
    **dict.fromkeys((*names_of(Kind.CUMULATIVE), "split"), _along("axis")),
    **dict.fromkeys(("rev", "concatenate", "sort"), _along("dimension", "dimensions")),
    "stack": _stacked,
    "unstack": _unstacked,
    "transpose": _transposed,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeezed,
    "reshape": _reshaped,
    "dot_general": _product,
    "iota": _unsharded,
}
