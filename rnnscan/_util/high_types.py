"""Types of JAX's high level, `jax.experimental.hijax.HiType`: values that are no arrays, and that JAX traces."""

from typing import Any

import jax
import numpy as np
from jax.experimental import hijax

from rnnscan._util.messages import leaves_with_places


class HighTypeError(TypeError):
    """Raised where a value must be an array, and has a type of JAX's high level.

    Attributes:
        reason: `high_type_reason` of it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"scan: {reason}. `rs.scan` runs such a call, by one plain lax.scan, and `rs.explain` says so; no other "
            "function takes it. Close over the value, or pass it in `params`."
        )
        self.reason = reason


def high_type_reason(**trees: Any) -> str:
    """Why no call of the engine may hold these values, which have names: one is of such a type; else empty."""
    for root, tree in trees.items():
        for number, leaf in enumerate(jax.tree.leaves(tree)):
            if is_high_value(leaf):
                where, _ = leaves_with_places(tree, root)[number]
                kind = type(jax.typeof(leaf)).__name__
                return f"{where} has a type of JAX's high level, {kind}, which JAX scans in its own loops only"
    return ""


def is_high_value(leaf: Any) -> bool:
    """Whether a value, or what a tracer stands for, has such a type."""
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)
    if is_array and not isinstance(leaf, jax.core.Tracer):
        return False
    try:
        return isinstance(jax.typeof(leaf), hijax.HiType)
    except TypeError:
        return False
