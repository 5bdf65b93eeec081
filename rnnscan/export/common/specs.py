"""Shapes and dtypes of a pytree as JSON, with named sizes such as "T" and "N"."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import describe


@dataclass(frozen=True)
class ArraySpec:
    """The dtype and shape of an array. A leaf, where pytrees are concerned.

    Attributes:
        dtype: the name of the dtype, such as "float32".
        shape: a number for each fixed axis. A dynamic axis is a name, or an expression of names such as "2*T".
    """

    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def spec_of(leaf: Any) -> ArraySpec:
    """The spec of an array or of its type. A symbolic size becomes text."""
    sizes = (int(size) if isinstance(size, int) else str(size) for size in leaf.shape)
    return ArraySpec(str(leaf.dtype), tuple(sizes))


def to_json(tree: Any, root: str) -> Any:
    """A pytree of specs as JSON.

    Args:
        tree: dictionaries, lists, tuples and None, with specs as leaves.
        root: its name in messages.

    Raises:
        TypeError: if it has other nodes. Loading must not need the code that defines them.
    """
    if tree is None:
        return None
    if isinstance(tree, ArraySpec):
        return {"array": {"dtype": tree.dtype, "shape": list(tree.shape)}}
    if type(tree) is dict and all(isinstance(name, str) for name in tree):
        return {"dict": {name: to_json(tree[name], f"{root}[{name!r}]") for name in sorted(tree)}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [to_json(part, f"{root}[{number}]") for number, part in enumerate(tree)]}
    raise TypeError(
        f"export.save: `{root}` must consist of arrays, dictionaries with strings as keys, lists, tuples and None; got "
        f"{type(tree).__name__}. Convert it to a dictionary in the function, because loading does not import its class."
    )


def from_json(written: Any) -> Any:
    """A pytree of specs from its JSON.

    Raises:
        KeyError, TypeError, ValueError: if it is not such JSON.
    """
    if written is None:
        return None
    ((kind, content),) = written.items()
    if kind == "array":
        jnp.dtype(content["dtype"])
        if not all(type(size) in (int, str) for size in content["shape"]):
            raise ValueError(f"the sizes {content['shape']}")
        return ArraySpec(content["dtype"], tuple(content["shape"]))
    if kind == "dict":
        return {name: from_json(part) for name, part in content.items()}
    kinds: dict[str, Any] = {"list": list, "tuple": tuple}
    return kinds[kind](from_json(part) for part in content)


def bind(tree: Any, specs: Any, root: str, sizes: dict[str, int], function: str) -> list[Any]:
    """Check a pytree of arrays against its specs, and note the sizes of dynamic axes.

    Args:
        tree: the arrays.
        specs: the specs, in the same structure.
        root: the name of the pytree in messages.
        sizes: the sizes of the named axes that are known. New ones are added.
        function: the function that is called, for messages.

    Returns:
        The leaves.

    Raises:
        TypeError: if the structure or a dtype differs.
        ValueError: if a rank or a size differs.
    """
    structure: Any = jax.tree.structure(tree)
    expected: Any = jax.tree.structure(specs)
    if structure != expected:
        raise TypeError(f"{function}: `{root}` must have the structure {expected}; got {structure}.")
    leaves = []
    for (path, spec), leaf in zip(jax.tree_util.tree_leaves_with_path(specs), jax.tree.leaves(tree), strict=True):
        place = f"{root}{jax.tree_util.keystr(path)}"
        leaf = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jnp.asarray(leaf)
        if str(leaf.dtype) != spec.dtype:
            raise TypeError(
                f"{function}: `{place}` must be {spec}; got {describe(leaf)}. Convert its dtype to {spec.dtype}."
            )
        _bind_sizes(leaf, spec, place, sizes, function)
        leaves.append(leaf)
    return leaves


def _bind_sizes(leaf: Any, spec: ArraySpec, place: str, sizes: dict[str, int], function: str) -> None:
    if len(leaf.shape) != len(spec.shape):
        raise ValueError(
            f"{function}: `{place}` must be {spec}, of rank {len(spec.shape)}; got {describe(leaf)}, of rank "
            f"{len(leaf.shape)}. Give it all of its axes."
        )
    for size, wanted in zip(leaf.shape, spec.shape, strict=True):
        known = wanted if isinstance(wanted, int) else sizes.get(wanted)
        if known is not None and size != known:
            named = f" with {wanted} = {known}, as in another argument" if isinstance(wanted, str) else ""
            raise ValueError(f"{function}: `{place}` must be {spec}{named}; got {describe(leaf)}. Change its shape.")
        if size < 1 and isinstance(wanted, str):
            raise ValueError(
                f"{function}: `{place}` must be {spec} with {wanted} of at least 1; got {describe(leaf)}, with "
                f"{wanted} = 0. Skip the call: programs of jax.export take no empty arrays."
            )
        if isinstance(wanted, str) and wanted.isidentifier():
            sizes[wanted] = size
