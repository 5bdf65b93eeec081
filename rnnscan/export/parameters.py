"""The parameters of an export: a list of arrays, in a safetensors file."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import leaves_of_one_name, place
from rnnscan.export import quantize
from rnnscan.export.common.extras import import_extra
from rnnscan.export.common.specs import ArraySpec
from rnnscan.export.common.symbols import check_array


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


def named_arrays(params: Any) -> dict[str, np.ndarray]:
    """The leaves of the parameters by their paths, in order.

    Raises:
        TypeError: if a leaf is not an array, or safetensors has no such dtype.
        ValueError: if two leaves have the same path.
    """
    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        where, name = place("params", path), jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        check_array(leaf, where)
        value = np.array(jnp.asarray(leaf), order="C")
        if str(value.dtype) not in _DTYPES.values():
            raise TypeError(
                f"export.save: {where} must have a dtype of safetensors, {list(_DTYPES.values())}; got {value.dtype}. "
                "Convert it."
            )
        arrays[name] = value
    if found := leaves_of_one_name(params, "/"):
        raise ValueError(
            f"export.save: the parameters must have different paths; got two with the path {found[0]!r}. Rename one."
        )
    return arrays


def encode_all(
    arrays: dict[str, np.ndarray], store: quantize.Store | None
) -> tuple[list[Parameter], dict[str, np.ndarray], bytes]:
    """The parameters, the arrays that loading will give for them, and the content of their file.

    Raises:
        ValueError: if an array cannot be stored with fewer bits.
    """
    parameters: list[Parameter] = []
    restored: dict[str, np.ndarray] = {}
    tensors: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        stored, dtype = quantize.stored_dtype(value, store), str(value.dtype)
        encoded = quantize.encode(name, value, stored)
        if encoded.keys() & (tensors.keys() | (arrays.keys() - {name})):
            raise ValueError(
                f"export.save: no parameter may have the name of a scale; got {list(encoded)}. Rename the other one."
            )
        tensors |= encoded
        restored[name] = quantize.decode(name, encoded, stored, dtype)
        error = None if stored == dtype else quantize.errors(value, restored[name])
        parameters.append(Parameter(name, ArraySpec(dtype, value.shape), stored, error))
    contiguous = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
    content = import_extra("safetensors.numpy").save(contiguous, metadata={"format": "rnnscan.export"})
    return parameters, restored, content


def decode_all(parameters: list[Parameter], content: bytes) -> list[np.ndarray]:
    """Read the arrays from the content of their file, whose hash must have been checked.

    Raises:
        ValueError: if the file has other tensors than the manifest says.
    """
    safetensors = import_extra("safetensors")
    try:
        read = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise ValueError(f"its parameters are no safetensors file ({error})") from error
    tensors = {
        name: np.frombuffer(field["data"], jnp.dtype(_DTYPES.get(field["dtype"], "void"))).reshape(field["shape"])
        for name, field in read
    }
    expected: dict[str, Any] = {}
    for parameter in parameters:
        shape: Any = parameter.spec.shape
        expected |= quantize.tensor_specs(parameter.name, parameter.stored, parameter.spec.dtype, shape)
    if {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()} != expected:
        raise ValueError("its parameters have other names, dtypes or shapes than the manifest says")
    return [
        quantize.decode(parameter.name, tensors, parameter.stored, parameter.spec.dtype) for parameter in parameters
    ]
