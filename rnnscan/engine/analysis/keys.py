"""Random keys as their data.

A branch of `lax.cond` cannot save keys for its derivative: JAX fills the other branch with zeros of their tangent type
(jax 0.10 to 0.12). So the saved values hold the data of keys.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from rnnscan._util.messages import is_key
from rnnscan.engine.analysis.leaves import replace_at


# The positions of keys, with their implementations.
Keys: TypeAlias = tuple[tuple[int, Any], ...]


def without_keys(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of a pytree with the data of keys, and the function that restores the pytree."""
    leaves, structure = jax.tree.flatten(tree)
    data, keys = as_key_data(leaves)
    return data, lambda leaves: jax.tree.unflatten(structure, with_keys(leaves, keys))


def as_key_data(leaves: Sequence[Any]) -> tuple[list[Any], Keys]:
    """Leaves with the data of keys, and where these are."""
    keys = tuple((index, jax.random.key_impl(leaf)) for index, leaf in enumerate(leaves) if is_key(leaf))
    places = [index for index, _ in keys]
    return replace_at(leaves, places, [jax.random.key_data(leaves[index]) for index in places]), keys


def with_keys(leaves: Sequence[Any], keys: Keys) -> list[Any]:
    """Leaves with keys in place of their data."""
    made = [jax.random.wrap_key_data(leaves[index], impl=impl) for index, impl in keys]
    return replace_at(leaves, [index for index, _ in keys], made)
