"""Checks of a cell's options, parameters, input and carry, at trace time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from rnnscan._util.arguments import is_typed_array
from rnnscan._util.messages import describe, describe_shape, describe_tree, describe_value, listing, nearest


_KINDS = {"floating": jnp.floating, "complex": jnp.complexfloating, "boolean": jnp.bool_}


def check_size(cell: str, argument: str, size: Any, *, least: int = 1) -> None:
    """Check that a size is an int of at least `least`."""
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise ValueError(f"{cell}: `{argument}` must be an int of at least {least}; got {describe_value(size)}.")


def floating(cell: str, argument: str, dtype: Any, *, optional: bool) -> Any:
    """Convert a floating dtype to its scalar type. None is allowed if it is optional."""
    if dtype is None and optional:
        return None
    try:
        is_floating = dtype is not None and jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        is_floating = False
    if not is_floating:
        raise TypeError(f"{cell}: `{argument}` must be a floating dtype, such as jnp.bfloat16; got {dtype!r}.")
    return jnp.dtype(dtype).type


def check_choice(cell: str, argument: str, choice: Any, choices: Sequence[str]) -> None:
    """Check that an option is one of several words."""
    if choice not in choices:
        raise ValueError(
            f"{cell}: `{argument}` must be one of {listing(choices)}; got {choice!r}.{nearest(str(choice), choices)}"
        )


def fitting_input_size(shapes: Mapping[str, tuple[Any, ...]], params: Any) -> int | None:
    """The value of "D" with which `shapes` are the shapes of `params`, or None if they are not."""
    if not isinstance(params, Mapping) or params.keys() != shapes.keys():
        return None
    sizes = set()
    for name, shape in shapes.items():
        actual = getattr(params[name], "shape", ())
        if len(actual) != len(shape):
            return None
        sizes |= {size for size, expected in zip(actual, shape, strict=True) if expected == "D"}
        if any(size != expected for size, expected in zip(actual, shape, strict=True) if expected != "D"):
            return None
    return sizes.pop() if len(sizes) == 1 else None


def check_params(
    cell: str,
    of_what: str,
    shapes: Mapping[str, tuple[Any, ...]],
    params: Any,
    *,
    likely_cause: Callable[[Any], str],
) -> int:
    """Check the names and shapes of parameters, and return their input size D."""
    input_size = fitting_input_size(shapes, params)
    if input_size is not None:
        return input_size
    expected = ", ".join(f"{name!r} {describe_shape(shape)}" for name, shape in shapes.items())
    if not isinstance(params, Mapping):
        raise TypeError(
            f"{cell}: the parameters must be a dictionary of {expected}; got {describe(params)}. "
            "Make them with cell.init(key, input_size); the arguments of a cell are (params, carry, x)."
        )
    got = ", ".join(f"{name!r} {describe(leaf)}" for name, leaf in params.items()) or "none"
    raise ValueError(f"{cell}: the parameters of {of_what} must be {expected}; got {got}. {likely_cause(params)}")


def check_one_feature_per_unit(cell: str, hidden_size: int, input_size: int) -> None:
    """Check that the input has as many features as the cell has units, where unit i reads only feature i."""
    if input_size != hidden_size:
        raise ValueError(
            f"{cell}: the input must have as many features as `hidden_size`, {hidden_size}; got {input_size}. Project "
            "the input first, or set hidden_size to its size."
        )


def check_input(cell: str, expected: tuple[Any, ...], x: Any) -> None:
    """Check the features of one step's input, and its axes if the cell has spatial ones.

    A cell without spatial axes takes any number of batch axes.
    """
    if not is_typed_array(x):
        raise TypeError(
            f"{cell}: one step's input must be one array, {describe_shape(expected)}; got {describe_tree(x)}. Stack a "
            "list of arrays with jnp.stack. The arguments of a cell are (params, carry, x), and those of scan (cell, "
            "params, carry, xs)."
        )
    spatial = len(expected) > 2
    if x.shape[-1:] != expected[-1:] or (spatial and x.ndim != len(expected)):
        raise ValueError(
            f"{cell}: one step's input must be {describe_shape(expected)} for these parameters; got {describe(x)}. "
            "The input_size of init is the size of the input's last axis."
        )


def check_carry(
    cell: str,
    names: tuple[str, ...],
    shapes: tuple[tuple[Any, ...], ...],
    carry: Any,
    x: Any,
    part_dtypes: Sequence[Any],
) -> None:
    """Check the structure, shapes and kinds of dtypes of a carry for the input x."""
    if not isinstance(carry, tuple) or len(carry) != len(names):
        expected = describe_shape(shapes[0]) if len(set(shapes)) == 1 else ", ".join(map(describe_shape, shapes))
        raise TypeError(
            f"{cell}: the carry must be the tuple {describe_shape(names)} of arrays {expected}; got "
            f"{describe_tree(carry)}. Start from cell.initial_carry(x)."
        )
    for part, shape, part_dtype, leaf in zip(names, shapes, part_dtypes, carry, strict=True):
        if jnp.shape(leaf) != shape:
            raise ValueError(
                f"{cell}: {part} in the carry must be {describe_shape(shape)} for one step's input {describe(x)}; got "
                f"{describe(leaf)}. Batch or hidden size may differ: start from cell.initial_carry(x). xs is "
                "time-major, (T, N, D)."
            )
        kind, kind_type = next(pair for pair in _KINDS.items() if jnp.issubdtype(part_dtype, pair[1]))
        if not jnp.issubdtype(leaf.dtype, kind_type):
            raise TypeError(
                f"{cell}: {part} in the carry must be of a {kind} dtype, because the new carry keeps it; got "
                f"{describe(leaf)}. Start from cell.initial_carry(x)."
            )
