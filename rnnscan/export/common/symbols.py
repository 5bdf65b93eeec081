"""Named sizes: the types of inputs whose leading axes are dynamic."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import describe, listing, place


# The names of the leading axes: of all inputs, or by the name of the input.
Axes = Sequence[str | None] | Mapping[str, Sequence[str | None]]


def symbolic_types(inputs: dict[str, Any], dynamic: Axes, function: str = "export.save") -> dict[str, Any]:
    """The types of inputs, with symbolic sizes on the leading axes.

    Args:
        inputs: pytrees of arrays or of their types, by the names of the inputs.
        dynamic: the names of the leading axes, None for a fixed one. A dictionary has them by the name of the input;
            an input that it leaves out is fixed.
        function: the function that is called, for messages.

    Returns:
        Pytrees of `jax.ShapeDtypeStruct`.

    Raises:
        TypeError: if a leaf is not an array, or holds PRNG keys.
        ValueError: if a name is not an identifier, or is the name of axes with different sizes.
    """
    if isinstance(dynamic, Mapping) and not set(dynamic) <= set(inputs):
        raise ValueError(
            f"{function}: `dynamic` must name inputs, {listing(inputs)}; got {listing(dynamic)}. Use their names."
        )
    scope = jax.export.SymbolicScope()
    seen: dict[str, tuple[Any, str]] = {}

    def symbolic(root: str, names: Sequence[str | None], path: Any, leaf: Any) -> Any:
        where = place(root, path)
        check_array(leaf, where, function)
        sizes = []
        for axis, size in enumerate(leaf.shape):
            name = names[axis] if axis < len(names) else None
            if name is not None:
                _check_same(name, size, where, seen, function)
            sizes.append(size if name is None else name)
        text = ", ".join(map(str, sizes))
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)  # float32 for NumPy's float64, without 64-bit types
        return jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), dtype)

    types = {}
    for name, tree in inputs.items():
        names = dynamic.get(name, ()) if isinstance(dynamic, Mapping) else dynamic
        _check_names(names, function)
        types[name] = jax.tree_util.tree_map_with_path(
            lambda path, leaf, name=name, names=names: symbolic(name, names, path, leaf), tree
        )
    return types


def check_array(leaf: Any, where: str, function: str = "export.save") -> None:
    """Reject leaves that are no arrays, and PRNG keys, which the manifest has no dtype for."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(
            f"{function}: {where} must be an array or a jax.ShapeDtypeStruct; got {describe(leaf)}. Convert it by "
            "jnp.asarray."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise TypeError(
            f"{function}: {where} must be an array of numbers; got {describe(leaf)}. Pass jax.random.key_data of a "
            "key, and wrap it in the function by jax.random.wrap_key_data."
        )


def _check_names(names: Any, function: str) -> None:
    if isinstance(names, str) or not all(name is None or str(name).isidentifier() for name in names):
        raise ValueError(
            f'{function}: `dynamic` must be names of leading axes, such as ("T", "N"), with None for a fixed axis; got '
            f"{names!r}. Use letters, digits and underscores."
        )


def _check_same(name: str, size: Any, where: str, seen: dict[str, tuple[Any, str]], function: str) -> None:
    other, there = seen.setdefault(name, (size, where))
    if other != size:
        raise ValueError(
            f"{function}: a dynamic axis must have one size in all inputs; got {name} = {other} in {there} and "
            f"{name} = {size} in {where}. Name the axes of each input, such as "
            'dynamic={"xs": ("T", "N"), "seq_lengths": ("N",)}.'
        )
