"""Convert tensors of other libraries to arrays, and check their names and shapes."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import describe, describe_shape, listing, nearest
from rnnscan.interop.arrays import Tensor, is_traced, to_host


# The most tensors that a message lists besides those that are wrong.
_MOST_LISTED = 3
# A size in a documented shape: "D", "4H", "4H+3", "2".
_SIZE = re.compile(r"(\d*)([A-Z]?)(?:\+(\d+))?")


def as_array(function: str, name: str, tensor: Any) -> Tensor:
    """Convert a tensor of torch, numpy, JAX or Keras to a numpy array of the same dtype. A traced array stays one.

    Raises:
        TypeError: if it is not a tensor of a floating dtype.
    """
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            # torch cannot convert bfloat16 to numpy; float32 holds it exactly.
            tensor = np.asarray(tensor.float()).astype(jnp.bfloat16)
    array = to_host(tensor)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{function}: {name} must be a tensor of a floating dtype; got {describe(tensor)}.")
    return array


def as_arrays(function: str, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert a dictionary of tensors to arrays, as `as_array` does.

    Raises:
        TypeError: if it is not a dictionary, or a value is not a tensor of a floating dtype.
    """
    if hasattr(tensors, "state_dict"):
        raise TypeError(
            f"{function}: the tensors must be a dictionary by name; got the module {type(tensors).__name__}. Pass "
            "module.state_dict()."
        )
    if not isinstance(tensors, Mapping):
        raise TypeError(f"{function}: the tensors must be a dictionary by name; got {type(tensors).__name__}.")
    return {name: as_array(function, repr(name), tensor) for name, tensor in tensors.items()}


def check_names(
    function: str, library: str, present: Iterable[str], expected: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Check that all expected tensors are given, and no unknown ones.

    Raises:
        ValueError: if a tensor is missing or unknown.
    """
    present, expected, optional = list(present), list(expected), list(optional)
    missing = [name for name in expected if name not in present]
    unknown = [name for name in present if name not in expected and name not in optional]
    if not missing and not unknown:
        return
    prefix = _prefix(present, expected)
    all_missing = len(missing) == len(expected) and (prefix is not None or len(expected) > _MOST_LISTED)
    faults = [f"missing {'all of them' if all_missing else listing(missing)}"] if missing else []
    if unknown:
        faults.append(f"unknown {listing(unknown)}")
    hints = "".join(nearest(str(name), missing or [*expected, *optional]) for name in unknown[:1])
    if prefix is not None:
        hints = (
            f" The names begin with {prefix!r}, as those of a module within another. Pass {{name.removeprefix("
            f"{prefix!r}): tensor for name, tensor in tensors.items() if name.startswith({prefix!r})}}."
        )
    also = f", and may have {listing(optional)}" if optional else ""
    # The names of the faults are not listed twice.
    got = listing(present) if len(present) <= _MOST_LISTED else f"{len(present)} tensors"
    raise ValueError(
        f"{function}: the tensors of {library} must be {listing(expected)}{also}; got {got}: "
        f"{', and '.join(faults)}.{hints}"
    )


def _prefix(present: Iterable[Any], expected: Iterable[str]) -> str | None:
    """What stands before an expected name in one of those present, such as `"encoder.rnn."`."""
    pairs = ((str(name), wanted) for name in present for wanted in expected)
    return next((name.removesuffix(wanted) for name, wanted in pairs if name.endswith(f".{wanted}")), None)


def check_shape(
    function: str,
    library: str,
    name: str,
    array: Tensor,
    shape: tuple[str, ...],
    sizes: Mapping[str, int],
    layout: object,
) -> None:
    """Check the shape of a tensor.

    Args:
        function: the name of the calling function, for the message.
        library: the library of the tensor, for the message.
        name: the name of the tensor.
        array: the tensor.
        shape: the shape in the library's documentation, such as ("4H", "D").
        sizes: the sizes of the letters. A letter without a size matches any size.
        layout: the order of gates, for the message.

    Raises:
        ValueError: if the shape differs.
    """
    expected = tuple(_evaluate(size, sizes) for size in shape)
    fits = len(expected) == array.ndim and all(
        isinstance(size, str) or size == actual for size, actual in zip(expected, array.shape, strict=True)
    )
    if not fits or 0 in array.shape:
        raise ValueError(
            f"{function}: {name!r} must be {describe_shape(expected)}, which {library} lays out as "
            f"{describe_shape(shape)}, {layout}; got {describe_shape(array.shape)}."
        )


def reshape_by_size(
    function: str,
    library: str,
    name: str,
    array: Tensor,
    shape: tuple[str, ...],
    sizes: Mapping[str, int],
    layout: object,
) -> Tensor:
    """Reshape a tensor, row by row, to the shape in its library's documentation.

    The arguments are those of `check_shape`. One letter may be without a size; the tensor's size determines it.

    Raises:
        ValueError: if the number of elements does not fit.
    """
    expected = tuple(_evaluate(size, sizes) for size in shape)
    known = math.prod(size for size in expected if isinstance(size, int))
    is_open = any(isinstance(size, str) for size in expected)
    if not array.size or (array.size % known if is_open else array.size != known):
        raise ValueError(
            f"{function}: {name!r} must have as many elements as {describe_shape(expected)}, which {library} lays out "
            f"as {describe_shape(shape)}, {layout}; got {describe_shape(array.shape)}."
        )
    return array.reshape([-1 if isinstance(size, str) else size for size in expected])


def _evaluate(size: str, sizes: Mapping[str, int]) -> int | str:
    """Evaluate a documented size such as "4H", or return it unchanged if its letter has no size."""
    if size in sizes:
        return sizes[size]
    match = _SIZE.fullmatch(size)
    if match is None or (match[2] and match[2] not in sizes):
        return size
    return int(match[1] or 1) * (sizes[match[2]] if match[2] else 1) + int(match[3] or 0)


def check_concrete(function: str, weights: Any) -> Any:
    """Return the weights for another library, which reads numpy arrays.

    Raises:
        TypeError: if they are traced.
    """
    if any(is_traced(leaf) for leaf in jax.tree.leaves(weights)):
        raise TypeError(
            f"{function}: the parameters must have values, because the result is numpy arrays; got traced arrays. "
            "Convert them outside of jax.jit and jax.grad."
        )
    return weights


def to_jax(params: Any) -> Any:
    """Convert numpy arrays to JAX arrays. Float64 becomes float32 unless `jax_enable_x64` is on."""
    return jax.tree.map(jnp.asarray, params)
