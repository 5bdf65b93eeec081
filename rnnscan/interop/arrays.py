"""Array operations of the converters: numpy on concrete arrays, `jax.numpy` on traced ones.

numpy converts on the host, without a compilation, and keeps float64. It cannot read a traced array, which a converter
gets inside `jax.jit` and `jax.grad`.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np


# A concrete array, or a traced one.
Tensor: TypeAlias = np.ndarray | jax.Array


def is_traced(array: Any) -> bool:
    """Whether an array has no values yet."""
    return isinstance(array, jax.core.Tracer)


def to_host(array: Any) -> Tensor:
    """Convert an array to numpy; a traced one stays unchanged."""
    return array if is_traced(array) else np.asarray(array)


def concatenate(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join arrays along an axis."""
    return _module_of(*arrays).concatenate(arrays, axis=axis)


def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join arrays along a new axis."""
    return _module_of(*arrays).stack(arrays, axis=axis)


def split(array: Tensor, parts: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Split an array into equal parts, or at indices."""
    return _module_of(array).split(array, parts, axis=axis)


def zeros_like(array: Tensor) -> Tensor:
    """Make zeros of the shape and dtype of an array."""
    return np.zeros(array.shape, array.dtype)


def contiguous(array: Tensor) -> Tensor:
    """Lay out an array row by row; a traced one has no layout."""
    return array if is_traced(array) else np.ascontiguousarray(array)


def _module_of(*arrays: Tensor) -> Any:
    return jnp if any(is_traced(array) for array in arrays) else np
