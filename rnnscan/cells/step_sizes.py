"""The step sizes of discretized state spaces: `softplus(z + b)`, which start log-uniformly over a range."""

from math import log
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def check_range(cell: str, argument: str, span: Any) -> None:
    """Check that a range is a tuple of two ascending numbers above 0."""
    if not isinstance(span, tuple) or len(span) != 2 or not 0 < span[0] <= span[1]:
        raise ValueError(f"{cell}: `{argument}` must be a tuple of two ascending numbers above 0; got {span!r}.")


def step_bias(key: Array, size: int, span: tuple[float, float], dtype: Any) -> Array:
    """Draw b, so that `softplus(b)` is log-uniform over the range."""
    low, high = span
    step = jnp.exp(jax.random.uniform(key, (size,), minval=log(low), maxval=log(high)))
    # The inverse of softplus.
    return (step + jnp.log(-jnp.expm1(-step))).astype(dtype)
