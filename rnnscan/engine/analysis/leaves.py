"""Lists of leaves in groups."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp


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
