"""`jax.checkpoint` within a call of the engine."""

from collections.abc import Callable
from typing import Any

import jax


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose values run again on the backward pass.

    With `JAX_REMAT3=1` a checkpoint is an operation of JAX's high level, which no call of the engine can hold
    (jax 0.12). There its values are kept.
    """
    if getattr(jax.config, "jax_remat3", False):
        return function
    checkpointed: Callable[..., Any] = jax.checkpoint(function, prevent_cse=False)
    return checkpointed
