"""Plan for one device of a mesh: its local shapes, outside of the mesh's context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax


@contextmanager
def without_mesh() -> Iterator[None]:
    """A context in which programs compile for one device.

    Inside `shard_map` and `pmap` the mesh is abstract, and nothing compiles for it.
    """
    try:
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            yield
    except AssertionError as error:
        raise NotImplementedError(
            "plan: inside shard_map, a cell may not close over values that vary across devices, because planning "
            "compiles it for one device. Pass them in `params` or `xs`, plan outside with rnnscan.plan, or set "
            "check_vma=False."
        ) from error


def local_shapes(tree: Any) -> Any:
    """The shapes on one device, by the shardings in the types of explicit meshes."""
    return jax.tree.map(_local_shape, tree)


def _local_shape(leaf: Any) -> Any:
    sharding = getattr(jax.typeof(leaf), "sharding", None) if isinstance(leaf, jax.Array) else None
    if sharding is None or not any(sharding.spec):
        return leaf
    return jax.ShapeDtypeStruct(sharding.shard_shape(leaf.shape), leaf.dtype)
