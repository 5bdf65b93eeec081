"""Items of a stack, by an index that is known not to be negative.

JAX wraps negative indices around, which takes three more operations for each. Its operators and some of its functions
are traced as calls, which takes longer.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


def item_of(stack: Any, index: Any) -> Any:
    """An item of a stack."""
    return lax.squeeze(items_of(stack, index, 1), [0])


def item_or(stack: Any, index: Any, outside: int, other: Any) -> Any:
    """An item of a stack, or the other value where the index is the one outside, just before or after the stack."""
    # The read stays within the stack, because `jax.experimental.checkify` reports others.
    least, last = np.asarray(0, index.dtype), np.asarray(stack.shape[0] - 1, index.dtype)
    within = lax.max(index, least) if outside < 0 else lax.min(index, last)
    return lax.select(lax.eq(index, np.asarray(outside, index.dtype)), other, item_of(stack, within))


def put_item(stack: Any, index: Any, item: Any) -> Any:
    """A stack with another item at an index."""
    return put_items(stack, index, lax.expand_dims(item, [0]))


def put_items(stack: Any, first: Any, items: Any) -> Any:
    """A stack with some other items, one after the other."""
    starts = [first, *[np.zeros((), jnp.result_type(first))] * (stack.ndim - 1)]
    return lax.dynamic_update_slice(stack, items, starts, allow_negative_indices=False)


def shifted(stack: Any, item: Any, *, to_start: bool) -> Any:
    """The items of a stack one place further to the start or to the end, and another item in the place left, if any."""
    size = stack.shape[0]
    if not size:
        return stack
    new = lax.expand_dims(item, [0])
    if to_start:
        return lax.concatenate([lax.slice_in_dim(stack, 1, size), new], 0)
    return lax.concatenate([new, lax.slice_in_dim(stack, 0, size - 1)], 0)


def moved(index: Any, steps: Any) -> Any:
    """An index, an array, so many steps further, which may be negative. A zero that is known is not added."""
    if isinstance(steps, int) and not steps:
        return index
    if isinstance(index, np.integer) and not index and not isinstance(steps, int):
        return steps
    return lax.add(index, np.asarray(steps, index.dtype) if isinstance(steps, int) else steps)


def items_of(stack: Any, first: Any, size: int, axis: int = 0) -> Any:
    """Some items of a stack, one after the other."""
    axis %= stack.ndim
    starts = [np.zeros((), jnp.result_type(first))] * stack.ndim
    sizes = [*stack.shape]
    starts[axis], sizes[axis] = first, size
    return lax.dynamic_slice(stack, starts, sizes, allow_negative_indices=False)
