"""Mutable arrays, `jax.new_ref`, among the arguments of a scan."""

from collections.abc import Callable
from typing import Any

import jax


def is_ref(leaf: Any) -> bool:
    """Whether a leaf is a ref, or stands for one in a trace."""
    if isinstance(leaf, jax.core.Tracer):
        return isinstance(jax.typeof(leaf), jax.ref.AbstractRef)
    return isinstance(leaf, jax.ref.Ref)


def has_refs(tree: Any) -> bool:
    """Whether a pytree has a ref among its leaves."""
    return any(map(is_ref, jax.tree.leaves(tree)))


def with_local_refs(step: Callable[[Any, Any], Any], xs: Any) -> Callable[[Any, Any], Any]:
    """The step on arrays in place of the refs among its input: it makes a ref of each. For a trace of its types.

    Args:
        step: `(carry, x) -> (carry, y)`.
        xs: the inputs of all steps.
    """

    def on_arrays(carry: Any, x: Any) -> Any:
        return step(carry, jax.tree.map(lambda leaf, of_step: jax.new_ref(of_step) if is_ref(leaf) else of_step, xs, x))

    return on_arrays
