"""Helpers of checks and their messages: types, places in pytrees, the nearest known name."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr


# The most leaves that a message shows one by one.
_MOST_LEAVES = 12


def describe(leaf: Any) -> str:
    """The type of an array as JAX writes it, `float32[4,8]`; the Python type of other values."""
    # `nnx.Rngs` has every attribute.
    if not isinstance(getattr(leaf, "shape", None), tuple) or not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def describe_value(value: Any) -> str:
    """A number, text or tuple itself; the type of another value, which may be a large array."""
    return repr(value) if isinstance(value, int | float | str | tuple | None) else describe(value)


def describe_tree(tree: Any) -> str:
    """The types of the leaves of a pytree, in its structure: `(float32[4,8], float32[4])`. Many are counted."""
    if len(jax.tree.leaves(tree)) > _MOST_LEAVES:
        return f"a {type(tree).__name__} of {len(jax.tree.leaves(tree))} leaves"
    return str(jax.tree.map(describe, tree)).replace("'", "")


def describe_shape(shape: tuple[Any, ...]) -> str:
    """A shape as documentation writes it: `(N, 4)`, `(4,)`."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def in_words(cell: Any) -> str:
    """A cell for a title: the name of a function, the repr of an object in one line, or the name of its class."""
    if hasattr(cell, "__name__"):
        return str(cell.__name__)
    kind = type(cell)
    shows_itself = any("__repr__" in vars(base) for base in kind.__mro__[:-1])
    text = repr(cell) if shows_itself else "\n"
    return kind.__name__ if "\n" in text else text


def place(root: str, path: Any = ()) -> str:
    """The place of a leaf as the user would index it: `carry['hidden'][0]`."""
    return f"`{root}{keystr(path)}`"


def leaves_of_one_name(tree: Any, separator: str) -> tuple[str, str, str] | None:
    """A name that two leaves have where their keys are joined by a separator, and both leaves; None: all differ."""
    first: dict[str, str] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        name = keystr(path, simple=True, separator=separator)
        if name in first:
            return name, first[name], keystr(path)
        first[name] = keystr(path)
    return None


def leaves_with_places(tree: Any, root: str) -> list[tuple[str, Any]]:
    """The leaves of a pytree, each with its place."""
    return [(place(root, path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def listing(names: Iterable[str]) -> str:
    """Names in a sentence: `'a', 'b'`, or `none`."""
    return ", ".join(map(repr, names)) or "none"


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'gates'?`, or nothing if no known name is near. Upper and lower case may differ."""
    close = _nearest(name, known)
    return "" if close is None else f" Did you mean {close!r}?"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    names = list(known)
    by_lower = {each.lower(): each for each in names}
    close = [] if name.lower() in by_lower else get_close_matches(name, names, n=1)
    close = close or get_close_matches(name.lower(), by_lower, n=1)
    return by_lower.get(close[0], close[0]) if close else None


def missing_attribute(module: str, name: str, known: Mapping[str, str]) -> AttributeError:
    """The error of a module without an attribute, with the nearest one.

    Args:
        module: the module.
        name: the attribute.
        known: the names that a user may mean, and where they are.
    """
    close = None if name.startswith("_") else _nearest(name, known)  # Tools ask for many names with underscores.
    hint = "" if close is None else f". Did you mean {known[close]}?"
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed PRNG keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_float(leaf: Any) -> bool:
    """Whether a leaf can have a gradient; integers, keys and values of JAX's high level have none."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def is_weak(leaf: Any) -> bool:
    """Whether an array is weakly typed, like a Python number."""
    return getattr(jax.typeof(leaf), "weak_type", False)


def is_array_like(value: Any) -> bool:
    """Whether a value is an array or a number."""
    return hasattr(value, "shape") or isinstance(value, bool | int | float | complex)


def is_count(value: Any, least: int = 1) -> bool:
    """Whether a value is an integer of at least `least`, also numpy's, but not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)
