"""Cells and nets as pytrees, so that they can be arguments of `jax.jit`.

A cell is configuration: it has no leaves, and `jax.jit` recompiles if it changes. A cell of cells has the leaves of its
cells, such as the encoder outputs in an attention cell.
"""

from dataclasses import fields
from typing import Any

import jax


def register(cls: type, *children: str) -> None:
    """Make a frozen dataclass a pytree.

    Args:
        cls: the class; it may be registered before it becomes a dataclass.
        children: the fields that hold cells or nets. The other fields are static and must be hashable.
    """

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        names = [field.name for field in fields(value) if field.name not in children]
        return [getattr(value, child) for child in children], tuple((name, getattr(value, name)) for name in names)

    def unflatten(static: tuple[Any, ...], values: Any) -> Any:
        # Without __init__ and its checks: JAX replaces the children with other objects.
        value: Any = object.__new__(cls)
        for name, part in (*static, *zip(children, values, strict=True)):
            object.__setattr__(value, name, part)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
