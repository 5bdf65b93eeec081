"""Items of a stack, by an index that is known not to be negative.

JAX wraps negative indices around, which takes three more operations for each.
"""

from typing import Any

from jax import lax


def item_of(stack: Any, index: Any) -> Any:
    """An item of a stack."""
    return lax.dynamic_index_in_dim(stack, index, keepdims=False, allow_negative_indices=False)


def item_or(stack: Any, index: Any, outside: int, other: Any) -> Any:
    """An item of a stack, or the other value where the index is the one outside, just before or after the stack."""
    if isinstance(index, int):
        return other if index == outside else item_of(stack, index)
    return lax.select(index == outside, other, item_of(stack, index))


def items_of(stack: Any, first: Any, size: int, axis: int = 0) -> Any:
    """Some items of a stack, one after the other."""
    return lax.dynamic_slice_in_dim(stack, first, size, axis, allow_negative_indices=False)
