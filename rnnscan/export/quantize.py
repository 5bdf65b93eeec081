"""Store weights with fewer bits: bfloat16, or int8 with a scale for each output channel."""

from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import describe


Store = Literal["bfloat16", "int8"]
_SCALE = ":scale"


def check_store(store: Any) -> None:
    """Reject a wrong value of `store`."""
    if store is not None and store not in get_args(Store):
        raise ValueError(
            f"export.save: `store` must be one of {get_args(Store)}, or None for the parameters' own dtypes; got "
            f"{store!r}."
        )


def stored_dtype(value: np.ndarray, store: Store | None) -> str:
    """The dtype that an array is stored as.

    Floating-point arrays are stored as bfloat16, and weights, which have two axes or more, as int8. Other arrays, such
    as biases, stay exact.
    """
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    if store == "int8" and is_float and value.ndim >= 2:
        return "int8"
    if store == "bfloat16" and is_float and value.dtype.itemsize > 2:
        return "bfloat16"
    return str(value.dtype)


def encode(name: str, value: np.ndarray, stored: str) -> dict[str, np.ndarray]:
    """The tensors that store an array: for int8, `q = round(w / s)` with `s = max |w| / 127` for each output channel.

    An output channel is an index of the last axis. Its scale is the tensor `name:scale`.

    Args:
        name: the name of the array.
        value: the array.
        stored: the dtype from `stored_dtype`.

    Raises:
        ValueError: if values would be lost because they are not finite, or are too large.
    """
    if stored == str(value.dtype):
        return {name: value}
    if stored == "int8":
        wide = value.astype(_wide(value.dtype))
        largest = np.abs(wide).max(axis=tuple(range(value.ndim - 1)), initial=0)
        scale = np.where(largest > 0, largest / 127, 1).astype(wide.dtype)
        tensors = {name + _SCALE: scale}
        if np.isfinite(wide).all() and (scale > 0).all():
            tensors[name] = np.clip(np.rint(wide / scale), -127, 127).astype(np.int8)
    else:
        with np.errstate(over="ignore"):
            tensors = {name: value.astype(jnp.bfloat16)}
    if name not in tensors or not np.isfinite(decode(name, tensors, stored, str(value.dtype)).astype(np.float64)).all():
        raise ValueError(
            f"export.save: values of a parameter must be finite and in the range of {stored} with store={stored!r}; "
            f"got others in {name!r}, {describe(value)}. Store it with store=None."
        )
    return tensors


def decode(name: str, tensors: dict[str, Any], stored: str, dtype: str) -> np.ndarray:
    """The array that tensors store.

    Args:
        name: the name of the array.
        tensors: the tensors from `encode`.
        stored: the dtype from `stored_dtype`.
        dtype: the dtype of the array.
    """
    value: np.ndarray = tensors[name]
    if stored == "int8" != dtype:
        value = value.astype(tensors[name + _SCALE].dtype) * tensors[name + _SCALE]
    return value.astype(jnp.dtype(dtype))


def tensor_specs(name: str, stored: str, dtype: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtypes and shapes of the tensors that store an array."""
    specs = {name: (stored, shape)}
    if stored == "int8" != dtype:
        specs[name + _SCALE] = (str(np.dtype(_wide(jnp.dtype(dtype)))), shape[-1:])
    return specs


def errors(value: np.ndarray, restored: np.ndarray) -> dict[str, float]:
    """The error of a stored array: the largest difference, and the difference's norm over the array's."""
    exact = value.astype(np.float64)
    difference = restored.astype(np.float64) - exact
    norm = float(np.linalg.norm(exact))
    return {
        "largest": float(np.abs(difference).max(initial=0)),
        "relative": float(np.linalg.norm(difference)) / norm if norm else 0.0,
    }


def _wide(dtype: Any) -> Any:
    """The dtype of the scales, wide enough that dividing by them is exact to rounding."""
    return np.float64 if dtype == np.float64 else np.float32
