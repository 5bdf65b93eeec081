"""Broadcasting by hand, for `jax.numpy_rank_promotion("raise")`."""

from typing import Any

import jax.numpy as jnp
from jax import lax


def over_rows(vector: Any, array: Any) -> Any:
    """A vector, or an array, with leading axes of size 1, so that it has as many axes as another array."""
    missing = jnp.ndim(array) - jnp.ndim(vector)
    return lax.expand_dims(vector, range(missing)) if missing > 0 else vector
