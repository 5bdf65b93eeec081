"""Modules of Flax and their classes, told apart without importing Flax."""

from typing import Any, Literal


def flax_package(value: Any) -> Literal["linen", "nnx"] | None:
    """The package of Flax that a module, or the class of one, belongs to; None for anything else."""
    for base in _kind(value).__mro__:
        if base.__module__.startswith("flax."):
            return "nnx" if base.__module__.startswith("flax.nnx") else "linen"
    return None


def is_flax_cell(value: Any) -> bool:
    """Whether a module of Flax, or the class of one, is that of a cell."""
    return flax_package(value) is not None and hasattr(_kind(value), "num_feature_axes")


def _kind(value: Any) -> type:
    return value if isinstance(value, type) else type(value)
