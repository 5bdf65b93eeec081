"""A barrier that holds on a CPU."""

from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata


def written(value: Any) -> Any:
    """A value that XLA for a CPU writes to memory, and does not fuse with its readers.

    There XLA drops `lax.optimization_barrier` before it fuses (jax 0.10.0). It inlines no call with this attribute.
    """
    with set_xla_metadata(inlineable="false"):
        return _call(value)


@jax.jit
def _call(value: Any) -> Any:
    return lax.optimization_barrier(value)
