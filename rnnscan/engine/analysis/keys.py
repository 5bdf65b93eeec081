"""Random keys as their data.

A branch of `lax.cond` cannot save keys for its derivative: JAX fills the other branch with zeros of their tangent type
(jax 0.10 to 0.12). So the saved values hold the data of keys.
"""

from collections.abc import Callable
from typing import Any

import jax

from rnnscan._util.messages import is_key
from rnnscan.engine.analysis.leaves import replace_at


def without_keys(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of a pytree with the data of keys, and the function that restores the pytree."""
    leaves, structure = jax.tree.flatten(tree)
    impls = {index: jax.random.key_impl(leaf) for index, leaf in enumerate(leaves) if is_key(leaf)}

    def restore(leaves: list[Any]) -> Any:
        keys = [jax.random.wrap_key_data(leaves[index], impl=impl) for index, impl in impls.items()]
        return jax.tree.unflatten(structure, replace_at(leaves, [*impls], keys))

    return replace_at(leaves, [*impls], [jax.random.key_data(leaves[index]) for index in impls]), restore
