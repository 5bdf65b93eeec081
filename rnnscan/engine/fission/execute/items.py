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
    if isinstance(index, int):
        return other if index == outside else item_of(stack, index)
    return lax.select(lax.eq(index, np.asarray(outside, index.dtype)), other, item_of(stack, index))


def moved(index: Any, steps: int) -> Any:
    """An index so many steps further, which may be negative."""
    return index + steps if isinstance(index, int) else lax.add(index, np.asarray(steps, index.dtype))


def items_of(stack: Any, first: Any, size: int, axis: int = 0) -> Any:
    """Some items of a stack, one after the other."""
    axis %= stack.ndim
    starts = [np.zeros((), jnp.result_type(first))] * stack.ndim
    sizes = [*stack.shape]
    starts[axis], sizes[axis] = first, size
    return lax.dynamic_slice(stack, starts, sizes, allow_negative_indices=False)
