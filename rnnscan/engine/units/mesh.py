"""The axis of a mesh over which hidden units are sharded."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rnnscan._util.trace_context import trace_context, tracing_with
from rnnscan._util.varying import explicit_spec, known_mesh, shard_as, vary, varying


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


def unit_mesh(leaves: Iterable[Any]) -> UnitMesh | None:
    """The mesh of arrays, or of `jax.set_mesh`, if it has an automatic axis for units with several devices.

    None if another axis with several devices is explicit: JAX has no constraint for a part of a type.
    """
    mesh = known_mesh(leaves)
    axis = unit_axis()
    if mesh is None or axis not in mesh.axis_names or mesh.shape[axis] == 1:
        return None
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = any(kind == AxisType.Explicit and mesh.shape[name] > 1 for name, kind in kinds.items())
    return UnitMesh(mesh, axis) if kinds[axis] == AxisType.Auto and not explicit else None


def sharding_units(axis: str) -> AbstractContextManager[None]:
    """Shard units over the axis of this name inside this context."""
    return tracing_with(unit_axis=axis)


def unit_axis() -> str:
    """The name of the axis in force."""
    return trace_context().unit_axis


def batch_devices(mesh: Any) -> int:
    """The number of devices of automatic axes that may share the rows of a batch."""
    kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return prod(size for name, size, kind in kinds if kind == AxisType.Auto and name != unit_axis())


def explicit_reason(params: Any, carry: Any, xs: Any) -> str:
    """Why the fission engine cannot run a step with explicit axes of a mesh; empty if they share rows only."""
    mesh = known_mesh(jax.tree.leaves((params, carry, xs)))
    if mesh is None:
        return ""
    kinds = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    if {AxisType.Explicit, AxisType.Auto} <= {kind for size, kind in kinds if size > 1}:
        return "the mesh has explicit and automatic axes"
    specs = [tuple(explicit_spec(jax.typeof(leaf))) for leaf in jax.tree.leaves(carry)]
    of_rows = {axis for spec in specs for axis in spec[:1]}
    other_axes = [axis for spec in specs for axis in spec[1:]]
    other_axes += [axis for leaf in jax.tree.leaves(params) for axis in explicit_spec(jax.typeof(leaf))]
    wrong = [axis for axis in other_axes if axis is not None and axis not in of_rows]
    return f"parameters or units are sharded over the explicit axis {wrong[0]!r} of the mesh" if wrong else ""


def shard_as_step(carry: Any, traced: Any) -> Any:
    """Shard the axes of a carry that are whole, and that a step returns sharded over explicit axes of a mesh.

    Under `jax.shard_map`, cast the leaves that vary over fewer axes of the mesh than the step returns them.

    Args:
        carry: the carry.
        traced: the jaxpr of the step on it.
    """
    leaves, structure = jax.tree.flatten(carry)
    pairs = zip(leaves, traced.out_avals, strict=False)
    return jax.tree.unflatten(structure, [vary(shard_as(leaf, new), varying(new)) for leaf, new in pairs])
