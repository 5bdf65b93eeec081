"""Values that lie in host memory between the passes."""

from collections.abc import Collection, Sequence
from typing import Any

import jax


def to_host(leaves: Sequence[Any], which: Collection[int]) -> list[Any]:
    """The leaves, those at some positions in host memory."""
    return [_placed(leaf, jax.memory.Space.Host) if index in which else leaf for index, leaf in enumerate(leaves)]


def to_device(leaves: Sequence[Any], which: Collection[int]) -> list[Any]:
    """The leaves, those at some positions in the device's memory."""
    return [_placed(leaf, jax.memory.Space.Device) if index in which else leaf for index, leaf in enumerate(leaves)]


def _placed(leaf: Any, space: Any) -> Any:
    return jax.device_put(leaf, space)
