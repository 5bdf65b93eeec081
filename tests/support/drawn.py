"""Random arrays for tests."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def normal(random: np.random.Generator, shape: Sequence[int], dtype: Any, scale: float = 1.0) -> jax.Array:
    """Normal numbers times `scale`.

    NumPy converts them to `dtype`, because JAX would compile a conversion for each shape. The tests of `make test` did
    that 500 times, in 16 ms of a processor each.
    """
    return jnp.asarray(np.asarray(scale * random.normal(size=shape), dtype))
