"""Plan for one device of a mesh: what each device holds, outside of the context of the mesh."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax


@contextmanager
def without_mesh() -> Iterator[None]:
    """Within this context, programs compile for one device.

    Inside `shard_map` and `pmap` there is only an abstract mesh, for which nothing compiles.
    """
    try:
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            yield
    except AssertionError as error:
        raise NotImplementedError(
            "plan: inside shard_map a cell may not close over values that vary from device to device, because planning "
            "compiles it for one. Pass them in `params` or `xs`, plan outside with rnnscan.plan, or set "
            "check_vma=False."
        ) from error


def local_shapes(tree: Any) -> Any:
    """The shapes of what one device holds, by the shardings in the types; they are there on explicit meshes."""
    return jax.tree.map(_local_shape, tree)


def _local_shape(leaf: Any) -> Any:
    sharding = getattr(jax.typeof(leaf), "sharding", None) if isinstance(leaf, jax.Array) else None
    if sharding is None or not any(sharding.spec):
        return leaf
    return jax.ShapeDtypeStruct(sharding.shard_shape(leaf.shape), leaf.dtype)
