"""place() and place_inputs(): put arrays on the devices of a mesh, with checks before."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rnnscan._util.messages import describe, is_key, listing


def place(tree: Any, mesh: Any, specs: Any) -> Any:
    """Put arrays on the devices of a mesh.

    If the mesh has devices of several processes, each passes the same arrays, and puts its part of them on its devices.

    Args:
        tree: a pytree of arrays: parameters, or the optimizer's state.
        mesh: a `jax.sharding.Mesh`.
        specs: a pytree of `PartitionSpec` like `tree`, such as `rules` makes, or one for all arrays.

    Returns:
        The arrays on the mesh.

    Raises:
        ValueError: if a spec has an axis that the mesh does not have, or more entries than its array has axes, or does
            not divide an axis of the array. Nothing is moved then.

    Example:
        >>> import jax
        >>> from jax.sharding import AxisType
        >>> import rnnscan as rs
        >>> mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
        >>> cell = rs.cells.LSTM(8)
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> params = rs.sharding.place(params, mesh, rs.sharding.rules(cell, mesh))
        >>> params["kernel"].sharding.mesh.shape["data"]
        1
    """
    if isinstance(specs, PartitionSpec):
        specs = jax.tree.map(lambda _: specs, tree)

    def check(path: Any, leaf: Any, spec: PartitionSpec) -> NamedSharding:
        _check("place", f"the array at {jax.tree_util.keystr(path) or 'the root'}", leaf, mesh, spec)
        return NamedSharding(mesh, spec)

    return _put(tree, jax.tree_util.tree_map_with_path(check, tree, specs))


def place_inputs(xs: Any, mesh: Any, spec: PartitionSpec = PartitionSpec(None, "data")) -> Any:
    """Put the inputs of a scan or net on the devices of a mesh.

    If the mesh has devices of several processes, each passes the inputs of all rows. To pass its own rows only, use
    `jax.make_array_from_process_local_data`.

    Args:
        xs: a pytree of arrays `(T, N, ...)`.
        mesh: a `jax.sharding.Mesh`.
        spec: the sharding of their axes, time first. The axis of steps cannot be sharded.

    Returns:
        The arrays on the mesh.

    Raises:
        ValueError: if `spec` shards the axis of steps, has an axis that the mesh does not have, or the devices do not
            divide the batch. Nothing is moved then.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jax.sharding import AxisType
        >>> import rnnscan as rs
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
        >>> tuple(rs.sharding.place_inputs(jnp.ones((5, 2, 3)), mesh).sharding.spec)
        (None, 'data')
    """
    if len(spec) and spec[0] is not None:
        raise ValueError(
            f"sharding.place_inputs: the first axis of `xs` is time, which runs in order, so it must not be sharded; "
            f"got {spec}. Shard the batch: PartitionSpec(None, 'data')."
        )
    for path, leaf in jax.tree.leaves_with_path(xs):
        _check("place_inputs", f"xs{jax.tree_util.keystr(path)}", leaf, mesh, spec)
    return _put(xs, jax.tree.map(lambda _: NamedSharding(mesh, spec), xs))


def _put(tree: Any, shardings: Any) -> Any:
    """`jax.device_put`, which for several processes would compare each array with those of all others."""
    if all(sharding.is_fully_addressable for sharding in jax.tree.leaves(shardings)):
        return jax.device_put(tree, shardings)
    return jax.tree.map(_put_part, tree, shardings)


def _put_part(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and is_key(leaf):
        return jax.random.wrap_key_data(_put_part(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def _check(function: str, place: str, leaf: Any, mesh: Any, spec: PartitionSpec) -> None:
    shape = jnp.shape(leaf)
    if len(spec) > len(shape):
        raise ValueError(
            f"sharding.{function}: a spec must have at most one entry for each axis; got {spec} for {place}, "
            f"{describe(leaf)}. Leave out entries at the end."
        )
    for axis, entry in enumerate(spec):
        names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        devices = 1
        for name in names:
            if name not in mesh.axis_names:
                raise ValueError(
                    f"sharding.{function}: a spec must name axes of the mesh, {listing(mesh.axis_names)}; got {name!r} "
                    f"in {spec}. Name another axis, or make a mesh with this one."
                )
            devices *= mesh.shape[name]
        if shape[axis] % devices:
            raise ValueError(
                f"sharding.{function}: {devices} devices must divide axis {axis} of {place}; got {describe(leaf)} with "
                f"{spec}. Change its size, or use fewer devices."
            )
