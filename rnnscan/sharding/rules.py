"""rules(): the sharding of a cell's or net's parameters over a mesh."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from rnnscan._util.messages import describe, listing
from rnnscan.engine.units.mesh import sharding_units


def rules(
    net: Any,
    mesh: Any,
    *,
    data: str | None = "data",
    model: str | None = "model",
    input_size: int | None = None,
) -> Any:
    """Choose how the parameters of a cell or net are sharded, so that the devices of an axis share its hidden units.

    Each of the M devices of `model` has 1 / M of each matrix: rows of it if M divides them, else columns. Vectors, and
    matrices that M does not divide, are replicated. No parameter is sharded over `data`, which shares the batch.
    These are the shardings between the steps of training. `scan` moves the matrices once, before its loop: there each
    device has the weights of its units for all gates.

    Args:
        net: a cell, a decoder or a net of the library, or any with its `init`.
        mesh: a `jax.sharding.Mesh`, or an abstract one. Both axes are automatic if units are sharded.
        data: the axis over which the batch is sharded; None: there is none.
        model: the axis over which units are sharded; None: there is none. `scan` takes it from the mesh if its name is
            "model"; otherwise use `units_over`.
        input_size: the number of features, if known. Without it matrices that read the input are sharded by columns.

    Returns:
        A pytree of `PartitionSpec`, with the structure of the parameters.

    Raises:
        ValueError: if the mesh does not have an axis, the axis `model` is not automatic, or does not divide the units.
        TypeError: if `net` has no `init`.

    Example:
        >>> import jax
        >>> from jax.sharding import AbstractMesh, AxisType
        >>> import rnnscan as rs
        >>> mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
        >>> tuple(rs.sharding.rules(rs.cells.LSTM(8), mesh)["recurrent_kernel"])
        ('model', None)
    """
    if not hasattr(net, "init"):
        raise TypeError(
            f"sharding.rules: `net` must be a cell or a net with `init`; got {describe(net)}. Pass the net, not its "
            "parameters."
        )
    for option, axis in (("data", data), ("model", model)):
        if axis is not None and axis not in mesh.axis_names:
            raise ValueError(
                f"sharding.rules: `{option}` must be an axis of the mesh, {listing(mesh.axis_names)}; got {axis!r}. "
                f"Name another axis, or set {option}=None."
            )
    size = _features(net) if input_size is None else input_size
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), size))
    devices = 1 if model is None else mesh.shape[model]
    if devices > 1:
        _check_kinds(mesh)
        _check_units(net, model, devices)
    fixed = params if input_size is not None else _with_other_features(net, size, params)

    def spec(leaf: Any, other: Any) -> PartitionSpec:
        sizes = [size if size == same else 1 for size, same in zip(leaf.shape, other.shape, strict=True)]
        return _spec(sizes, model, devices)

    return jax.tree.map(spec, params, fixed)


def units_over(axis: str) -> AbstractContextManager[None]:
    """A context in which `scan` and all that runs on it shard hidden units over an axis of the mesh.

    Without it that is the axis named "model". An automatic axis of that name, with several devices, shards the units of
    every cell that is traced for arrays on the mesh, or under `jax.set_mesh`. Results stay the same to rounding.

    Args:
        axis: the name of the axis. A name that no mesh has shards no units.

    Returns:
        The context. It must be in force where a function is traced.

    Example:
        >>> import rnnscan as rs
        >>> with rs.sharding.units_over("tensor"):
        ...     pass  # train
    """
    return sharding_units(axis)


def _spec(shape: Sequence[int], model: str | None, devices: int) -> PartitionSpec:
    if devices == 1 or len(shape) < 2:
        return PartitionSpec()
    # Rows first: the move to shares of all gates is then one all-to-all, whatever the number of gates.
    for axis in (len(shape) - 2, len(shape) - 1):
        if shape[axis] % devices == 0:
            return PartitionSpec(*(model if position == axis else None for position in range(len(shape))))
    return PartitionSpec()


def _check_kinds(mesh: Any) -> None:
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    wrong = [name for name, kind in kinds.items() if kind != AxisType.Auto and mesh.shape[name] > 1]
    if wrong:
        raise ValueError(
            f"sharding.rules: to shard units, the axes of the mesh must be automatic; got {kinds[wrong[0]]} for "
            f"{wrong[0]!r}. Make it with jax.make_mesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto, ...))."
        )


def _check_units(net: Any, model: str | None, devices: int) -> None:
    for cell in _cells(net):
        for units in (getattr(cell, "hidden_size", 0), getattr(cell, "output_size", 0)):
            if units % devices:
                raise ValueError(
                    f"sharding.rules: the {devices} devices of the axis {model!r} must divide the hidden units; got "
                    f"{units} units in {cell!r}. Change the units or the mesh."
                )


def _cells(net: Any) -> Iterator[Any]:
    """The cells of a net that have no cells inside."""
    inner = [*getattr(net, "nets", ()), *getattr(net, "cells", ())]
    fields = [getattr(net, name, None) for name in ("cell", "forward", "backward")]
    inner += [field for field in fields if hasattr(field, "init")]
    for part in inner:
        yield from _cells(part)
    if not inner:
        yield net


def _features(net: Any) -> int:
    """A number of features that a net takes: that of the units of its first cell."""
    return int(getattr(next(_cells(net)), "output_size", 1))


def _with_other_features(net: Any, size: int, params: Any) -> Any:
    """The parameters for another number of features; those for this one if the net takes no other."""
    try:
        return jax.eval_shape(lambda: net.init(jax.random.key(0), size + 1))
    except ValueError:
        return params
