"""The axis of a mesh over which hidden units are sharded."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec


# The name of the axis; part of jit's cache key.
_axis = jax.make_user_context("model")


@dataclass(frozen=True)
class UnitMesh:
    """A mesh over one of whose axes units are sharded.

    Attributes:
        mesh: the mesh, as far as the trace knows it.
        axis: the name of the axis.
    """

    mesh: Any
    axis: str

    @property
    def devices(self) -> int:
        """The number of devices that share the units."""
        return int(self.mesh.shape[self.axis])

    def shard(self, weight: Any) -> Any:
        """Shard the last axis of a parameter. No other axis of it is sharded."""
        spec = [*[None] * (weight.ndim - 1), self.axis]
        return jax.lax.with_sharding_constraint(weight, NamedSharding(self.mesh, PartitionSpec(*spec)))

    def gather(self, value: Any, axis: int) -> Any:
        """Gather an axis of a value."""
        spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * value.ndim
        spec[axis] = None
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, PartitionSpec(*spec)))

    def gather_features(self, xs: Any) -> Any:
        """Gather the features of inputs `(T, N, D)`. Other inputs are returned as they are."""
        is_real = jnp.issubdtype(xs.dtype, jnp.floating)
        return self.gather(xs, xs.ndim - 1) if xs.ndim > 2 and is_real else xs


def known_mesh(leaves: Iterable[Any]) -> Any:
    """The mesh of arrays, or of `jax.set_mesh`, as far as the trace knows it; None without one."""
    return next(_meshes(leaves), None)


def unit_mesh(leaves: Iterable[Any]) -> UnitMesh | None:
    """The mesh of arrays, or of `jax.set_mesh`, if it has an automatic axis for units with several devices."""
    mesh = known_mesh(leaves)
    axis = _axis.value
    if mesh is None or axis not in mesh.axis_names or mesh.shape[axis] == 1:
        return None
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return UnitMesh(mesh, axis) if kinds[axis] == AxisType.Auto else None


@contextmanager
def sharding_units(axis: str) -> Iterator[None]:
    """Shard units over the axis of this name inside this context."""
    with _axis(axis):
        yield


def batch_devices(mesh: Any) -> int:
    """The number of devices of automatic axes that may share the rows of a batch."""
    kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return prod(size for name, size, kind in kinds if kind == AxisType.Auto and name != _axis.value)


def _meshes(leaves: Iterable[Any]) -> Iterator[Any]:
    for leaf in leaves:
        mesh = getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", None)
        if mesh is not None and not mesh.empty:
            yield mesh
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        yield mesh
