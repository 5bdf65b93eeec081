"""The parameters of an export: a list of arrays, in a safetensors file."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._messages import place
from rnnscan.export import quantize
from rnnscan.export.extras import import_extra
from rnnscan.export.specs import ArraySpec
from rnnscan.export.symbols import check_array


# The names that safetensors writes in a file.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an exported function.

    Attributes:
        name: its path in the pytree, such as "net_0/kernel".
        spec: its dtype and shape.
        stored: the dtype that it is stored as.
        error: the error of storing it: the largest difference, and the relative one. None if it is exact.
    """

    name: str
    spec: ArraySpec
    stored: str
    error: dict[str, float] | None


def encode_all(params: Any, store: quantize.Store | None) -> tuple[list[Parameter], list[np.ndarray], bytes]:
    """The parameters, the arrays that loading will give for them, and the content of their file.

    Raises:
        TypeError: if a leaf is no array, or safetensors has no such dtype.
        ValueError: if a leaf cannot be stored with fewer bits.
    """
    parameters: list[Parameter] = []
    restored: list[np.ndarray] = []
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        check_array(leaf, place("params", path))
        value = np.array(leaf, order="C")
        if str(value.dtype) not in _DTYPES.values():
            raise TypeError(
                f"export.save: {place('params', path)} must have a dtype of safetensors, {list(_DTYPES.values())}; got "
                f"{value.dtype}. Convert it."
            )
        stored = quantize.stored_dtype(value, store)
        encoded = quantize.encode(name, value, stored)
        if encoded.keys() & tensors.keys():
            raise ValueError(
                f"export.save: the parameters must have different paths; got two with the path {name!r}. Rename one."
            )
        tensors |= encoded
        again = quantize.decode(name, encoded, stored, str(value.dtype))
        error = None if stored == str(value.dtype) else quantize.errors(value, again)
        parameters.append(Parameter(name, ArraySpec(str(value.dtype), value.shape), stored, error))
        restored.append(again)
    numpy_files = import_extra("safetensors.numpy")
    contiguous = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
    return parameters, restored, numpy_files.save(contiguous, metadata={"format": "rnnscan.export"})


def decode_all(parameters: list[Parameter], content: bytes) -> list[np.ndarray]:
    """Read the arrays from the content of their file, whose hash must have been checked.

    Raises:
        ValueError: if the file has other tensors than the manifest says.
    """
    safetensors = import_extra("safetensors")
    try:
        read = {name: (tensor["dtype"], tensor["shape"], tensor["data"]) for name, tensor in _tensors(content)}
    except safetensors.SafetensorError as error:
        raise ValueError(f"its parameters are no safetensors file ({error})") from error
    tensors = {
        name: np.frombuffer(data, jnp.dtype(_DTYPES[dtype])).reshape(shape)
        for name, (dtype, shape, data) in read.items()
    }
    expected: dict[str, Any] = {}
    for one in parameters:
        shape: Any = one.spec.shape
        expected |= quantize.tensor_specs(one.name, one.stored, one.spec.dtype, shape)
    if {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()} != expected:
        raise ValueError("its parameters have other names, dtypes or shapes than the manifest says")
    return [quantize.decode(one.name, tensors, one.stored, one.spec.dtype) for one in parameters]


def _tensors(content: bytes) -> Any:
    return import_extra("safetensors").deserialize(content)
