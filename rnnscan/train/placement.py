"""The places of a training run's state and batches on a mesh."""

from math import prod
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from rnnscan._util.messages import listing
from rnnscan.sharding import place
from rnnscan.train.state import TrainState


# The axes of a mesh for training: of the rows of a batch, and of hidden units.
AXES = ("data", "model")


def make_mesh(sizes: dict[str, int]) -> Mesh:
    """Make a mesh for training, over the first devices of all processes.

    Args:
        sizes: the number of devices along the axes `"data"`, which shares the rows of a batch, and `"model"`, which
            shares hidden units. An axis that is left out has one.

    Returns:
        A mesh with both axes, which are automatic.

    Raises:
        ValueError: if an axis is unknown, a size is below 1, there are fewer devices, or one of several processes has
            none of them.

    Example:
        >>> dict(make_mesh({"data": 1}).shape)
        {'data': 1, 'model': 1}
    """
    for axis, size in sizes.items():
        if axis not in AXES:
            raise ValueError(f"mesh: an axis must be one of {listing(AXES)}; got {axis!r}. Write data=4,model=2.")
        if size < 1:
            raise ValueError(f"mesh: an axis must have at least 1 device; got {axis}={size}.")
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    devices = jax.devices()
    if prod(shape) > len(devices):
        raise ValueError(
            f"mesh: the devices of all axes together must be at most {len(devices)}, which are there; got "
            f"{' x '.join(map(str, shape))} = {prod(shape)}. Make an axis smaller."
        )
    without = set(range(jax.process_count())) - {device.process_index for device in devices[: prod(shape)]}
    if without:
        raise ValueError(
            f"mesh: each of the {jax.process_count()} processes must have a device in the mesh; got "
            f"{' x '.join(map(str, shape))} of {len(devices)} devices, and none of process {min(without)}. Make an "
            "axis larger, or start fewer processes."
        )
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[: prod(shape)])


def place_state(
    state: TrainState,
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    mesh: Mesh,
    specs: Any,
    *,
    carry: PartitionSpec = PartitionSpec("data"),
) -> TrainState:
    """Put the state of a training run on a mesh. `RunDirectory.restore` reads checkpoints of any mesh into it.

    Args:
        state: the state.
        optimizer: the optimizer that made its optimizer state.
        mesh: a mesh.
        specs: a pytree of `PartitionSpec` like the parameters, such as `rnnscan.sharding.rules` makes. What the
            optimizer keeps of each parameter is placed like it.
        carry: the sharding of the leaves of the carry. Entries for axes that a leaf lacks are left out.

    Returns:
        The state on the mesh.

    Raises:
        ValueError: if the devices do not divide an axis; see `rnnscan.sharding.place`.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.train import begin
        >>> optimizer = optax.adam(1e-3)
        >>> state = begin({"w": jnp.ones((4, 2))}, optimizer)
        >>> state = place_state(state, optimizer, make_mesh({"data": 1}), {"w": PartitionSpec(None, "model")})
        >>> state.optimizer_state[0].mu["w"].sharding.spec == state.params["w"].sharding.spec
        True
    """
    of_optimizer: Any = optax.tree.map_params(
        optimizer,
        lambda _, spec: spec,
        state.optimizer_state,
        specs,
        transform_non_params=lambda _: PartitionSpec(),
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )
    of_carry = jax.tree.map(lambda leaf: PartitionSpec(*carry[: leaf.ndim]), state.carry)
    everywhere: Any = PartitionSpec()
    return place(state, mesh, TrainState(specs, of_optimizer, of_carry, everywhere, everywhere, everywhere, everywhere))


def place_rows(batch: np.ndarray, mesh: Mesh, spec: PartitionSpec, dtype: DTypeLike | None = None) -> jax.Array:
    """Put a batch on a mesh. Each process reads its own rows only, so the batch may be a memory-mapped file.

    Args:
        batch: the batch of all processes.
        mesh: the mesh.
        spec: the sharding of its axes.
        dtype: the dtype of the array; None: the batch's. So a file of bytes becomes token ids.

    Returns:
        The array on the mesh.

    Raises:
        ValueError: from JAX, if the devices do not divide an axis.

    Example:
        >>> place_rows(np.ones((3, 2)), make_mesh({"data": 1}), PartitionSpec(None, "data")).shape
        (3, 2)
    """
    read = lambda index: np.asarray(batch[index], dtype)  # noqa: E731
    return jax.make_array_from_callback(batch.shape, NamedSharding(mesh, spec), read)
