"""What types say of a mesh: the axes over which a value varies in `jax.shard_map`, explicit axes, the mesh itself."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def varying(aval: Any) -> frozenset[str]:
    """The axes over which values of a type vary."""
    return frozenset(aval.manual_axis_type.varying)


def explicit_spec(aval: Any) -> PartitionSpec:
    """The explicit axes over which each axis of a type is sharded."""
    return getattr(getattr(aval, "sharding", None), "spec", None) or PartitionSpec()


def shard_as(leaf: Any, new: Any) -> Any:
    """Shard the axes of a value that are whole over the explicit axes of a mesh over which a type has them."""
    wanted = tuple(explicit_spec(new))
    spec = tuple(explicit_spec(jax.typeof(leaf))) or (None,) * len(wanted)
    if len(spec) != len(wanted):
        return leaf  # A wrong carry: the checks after this say so.
    if spec == wanted or any(old not in (None, axis) for old, axis in zip(spec, wanted, strict=True)):
        return leaf
    return jax.sharding.reshard(leaf, NamedSharding(new.sharding.mesh, PartitionSpec(*wanted)))


def in_mesh(made: Any, of: Any, spec: PartitionSpec) -> Any:
    """A type that `jax.eval_shape` returned, with the mesh of the type that it was made from.

    Where only some axes of the mesh are those of `shard_map`, the type of a trace's argument needs the mesh.
    """
    if varying(of) and made.sharding is None and not of.sharding.mesh.empty:
        return made.update(sharding=NamedSharding(of.sharding.mesh, spec))
    return made


def vary(tree: Any, axes: frozenset[str]) -> Any:
    """Cast the arrays of a pytree, so that they vary over `axes` too. Their gradients are then added up here, once."""

    def cast(leaf: Any) -> Any:
        more = axes - varying(jax.typeof(leaf)) if hasattr(leaf, "dtype") else ()
        return lax.pcast(leaf, tuple(sorted(more)), to="varying") if more else leaf

    return jax.tree.map(cast, tree) if axes else tree


def vary_as(tree: Any, leaves: Iterable[Any]) -> Any:
    """Cast the arrays of a pytree, so that they vary over all axes over which one of the leaves varies."""
    return vary(tree, frozenset[str]().union(*(varying(jax.typeof(leaf)) for leaf in leaves)))


def known_mesh(leaves: Iterable[Any]) -> Any:
    """The mesh of arrays, or of `jax.set_mesh`, as far as the trace knows it; None without one."""
    return next(_meshes(leaves), None)


@contextmanager
def in_mesh_of(types: Iterable[Any]) -> Iterator[None]:
    """A context whose mesh is that of the explicit axes of types, if the context has none.

    Without one, JAX's rules for derivatives make values without an axis (from jax 0.11 on), which meet those with it.
    """
    mesh = next((mesh for mesh in _meshes_of(types) if mesh.explicit_axes), None)
    if mesh is None or not jax.sharding.get_abstract_mesh().empty:
        yield
    else:
        with jax.sharding.use_abstract_mesh(mesh):
            yield


def _meshes(leaves: Iterable[Any]) -> Iterator[Any]:
    yield from _meshes_of(map(jax.typeof, leaves))
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        yield mesh


def _meshes_of(types: Iterable[Any]) -> Iterator[Any]:
    for each in types:
        mesh = getattr(getattr(each, "sharding", None), "mesh", None)
        if mesh is not None and not mesh.empty:
            yield mesh
