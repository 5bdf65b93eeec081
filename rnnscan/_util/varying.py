"""What the type of a value says of a mesh: the axes over which it varies in `jax.shard_map`, and explicit axes."""

from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec


def varying(aval: Any) -> frozenset[str]:
    """The axes over which values of a type vary."""
    return frozenset(aval.manual_axis_type.varying)


def explicit_spec(aval: Any) -> PartitionSpec:
    """The explicit axes over which each axis of a type is sharded."""
    return getattr(getattr(aval, "sharding", None), "spec", None) or PartitionSpec()


def vary(tree: Any, axes: frozenset[str]) -> Any:
    """Cast the arrays of a pytree, so that they vary over `axes` too. Their gradients are then added up here, once."""

    def cast(leaf: Any) -> Any:
        more = axes - varying(jax.typeof(leaf)) if hasattr(leaf, "dtype") else ()
        return lax.pcast(leaf, tuple(sorted(more)), to="varying") if more else leaf

    return jax.tree.map(cast, tree) if axes else tree
