"""The axes of a mesh over which `jax.shard_map` varies values."""

from typing import Any

import jax
from jax import lax


def varying(aval: Any) -> frozenset[str]:
    """The axes over which values of a type vary."""
    return frozenset(aval.manual_axis_type.varying)


def vary(tree: Any, axes: frozenset[str]) -> Any:
    """Cast the arrays of a pytree, so that they vary over `axes` too. Their gradients are then added up here, once."""

    def cast(leaf: Any) -> Any:
        more = axes - varying(jax.typeof(leaf)) if hasattr(leaf, "dtype") else ()
        return lax.pcast(leaf, tuple(sorted(more)), to="varying") if more else leaf

    return jax.tree.map(cast, tree) if axes else tree
