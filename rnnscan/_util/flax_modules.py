"""Modules of Flax and their classes, told apart without importing Flax."""

import sys
from typing import Any, Literal


def flax_package(value: Any) -> Literal["linen", "nnx"] | None:
    """The package of Flax that a module, or the class of one, belongs to; None for anything else."""
    if issubclass(_kind(value), _modules("linen")):
        return "linen"
    return "nnx" if issubclass(_kind(value), _modules("nnx")) else None


def is_module_of(value: Any, *packages: Literal["linen", "nnx"]) -> bool:
    """Whether a value is a module of one of these packages, and not the class of one."""
    return not isinstance(value, type) and flax_package(value) in packages


def is_flax_cell(value: Any) -> bool:
    """Whether a module of Flax, or the class of one, is that of a cell."""
    return flax_package(value) is not None and hasattr(_kind(value), "num_feature_axes")


def _modules(package: str) -> tuple[type, ...]:
    """The class of a package's modules. Without an import of Flax there are none."""
    imported: Any = sys.modules.get(f"flax.{package}")
    return () if imported is None else (imported.Module,)


def _kind(value: Any) -> type:
    return value if isinstance(value, type) else type(value)
