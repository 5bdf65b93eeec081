"""The arguments and results of a traced function: their pytrees, their places and their types."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr

from rnnscan._util.messages import describe, is_array_like, is_weak


@dataclass(frozen=True)
class Signature:
    """The arguments and results of a function.

    Attributes:
        is_cell: whether it is a cell, `(params, carry, x) -> (carry, y)`.
        arguments: the structure of `(positional arguments, named arguments)`.
        results: the structure of the results.
        argument_names: a name for each positional argument.
    """

    is_cell: bool
    arguments: Any
    results: Any
    argument_names: tuple[str, ...]

    def argument_places(self) -> list[str]:
        """The place of each leaf of the arguments: `params['kernel']`."""
        return list(_places(self.arguments, self._root_of_argument))

    def result_places(self) -> list[str]:
        """The place of each leaf of the results: `carry[0]` and `y` for a cell, `result[0]` for a function."""

        def root(path: Any) -> tuple[str, Any]:
            if not self.is_cell:
                return "result", path
            carry = self.argument_names[1]
            return (carry, "result" if carry == "y" else "y")[path[0].idx], path[1:]

        return list(_places(self.results, root))

    def sizes(self) -> list[int]:
        """The number of leaves of each positional argument."""
        arguments, _ = jax.tree.unflatten(self.arguments, range(self.arguments.num_leaves))
        return [len(jax.tree.leaves(argument)) for argument in arguments]

    def _root_of_argument(self, path: Any) -> tuple[str, Any]:
        if path[0].idx:
            return str(path[1].key), path[2:]
        return self.argument_names[path[1].idx], path[2:]

    def leaves_of(self, arguments: Sequence[Any], named: Mapping[str, Any], avals: Sequence[Any]) -> list[Any]:
        """The leaves of arguments, as arrays of the types that were traced.

        Raises:
            TypeError: if the arguments have another structure, or a leaf another shape or dtype.
        """
        leaves, structure = jax.tree.flatten((tuple(arguments), dict(named)))
        if structure != self.arguments:
            raise TypeError(
                "graph.to_cell: the arguments must have the structure that was traced, "
                f"{_in_words(self.arguments)}; got {_in_words(structure)}. Trace the function with these arguments."
            )
        checked = []
        for place, leaf, aval in zip(self.argument_places(), leaves, avals, strict=True):
            leaf = as_array("to_cell", leaf, place)
            if (tuple(leaf.shape), leaf.dtype) != (tuple(aval.shape), aval.dtype):
                raise TypeError(
                    f"graph.to_cell: `{place}` must have the type that was traced, {describe(aval)}; got "
                    f"{describe(leaf)}. Trace the function with arguments of this type."
                )
            checked.append(leaf.astype(leaf.dtype) if is_weak(leaf) and not aval.weak_type else leaf)
        return checked


def as_array(function: str, leaf: Any, place: str, *, what: str = "the arguments") -> Any:
    """The leaf, if it is an array or a type, and a number as an array.

    Args:
        function: the caller's name, for messages.
        leaf: the leaf.
        place: its place.
        what: the pytree that has it.

    Raises:
        TypeError: if it is neither.
    """
    if not is_array_like(leaf):
        raise TypeError(
            f"graph.{function}: every leaf of {what} must be an array or a number; got {describe(leaf)} at "
            f"`{place}`. Close over other values instead of passing them, and return arrays alone."
        )
    return leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)


def names_of_arguments(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of a function's first positional arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Some callables have no signature.
        parameters = []
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ][:count]
    rest = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), "argument")
    return (*names, *(f"{rest}[{index}]" for index in range(count - len(names))))


def _places(structure: Any, root: Callable[[Any], tuple[str, Any]]) -> Iterator[str]:
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    for path, _ in jax.tree_util.tree_leaves_with_path(numbered):
        name, rest = root(path)
        yield f"{name}{keystr(rest)}"


def _in_words(structure: Any) -> str:
    arguments, named = jax.tree.unflatten(structure, ["*"] * structure.num_leaves)
    shown = [repr(argument).replace("'*'", "*") for argument in arguments]
    return f"({', '.join([*shown, *(f'{name}={argument!r}' for name, argument in named.items())])})".replace("'*'", "*")
