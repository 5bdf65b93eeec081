"""Lists of leaves: in groups, with some replaced, with the data of random keys in place of keys.

A branch of `lax.cond` cannot save keys for its derivative: JAX fills the other branch with zeros of their tangent type
(jax 0.10 to 0.12). So saved values hold the data of keys.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan._util.messages import is_key


# The positions of keys, with their implementations.
Keys: TypeAlias = tuple[tuple[int, Any], ...]


def split_list(leaves: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """The leaves in groups of the given sizes, and the remaining ones as the last group."""
    groups, begin = [], 0
    for size in sizes:
        groups.append(list(leaves[begin : begin + size]))
        begin += size
    return [*groups, list(leaves[begin:])]


def replace_at(leaves: Sequence[Any], indices: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    """The leaves with replacements at some indices."""
    whole = list(leaves)
    for index, replacement in zip(indices, replacements, strict=True):
        whole[index] = replacement
    return whole


def leaves_at(indices: Sequence[int], positions: Sequence[int], leaves: Sequence[Any]) -> list[Any]:
    """The leaves at some indices, of leaves that stand at some positions; None at an index that is none of these."""
    at = dict(zip(positions, leaves, strict=True))
    return [at.get(index) for index in indices]


def places(flags: Sequence[bool]) -> list[int]:
    """The positions of the flags that are set."""
    return [index for index, flag in enumerate(flags) if flag]


def as_arrays(leaves: Iterable[Any]) -> list[Any]:
    """The leaves, with arrays in place of Python numbers, which have no shape.

    JAX hands the literals of a jaxpr to the rules of primitives as Python numbers with a type (from jax 0.10.2 on).
    """
    return [jnp.asarray(leaf) if isinstance(leaf, bool | int | float | complex) else leaf for leaf in leaves]


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
