"""Save and load parameters as safetensors files."""

import hashlib
import importlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import describe, listing, nearest
from rnnscan.interop.tensors import to_jax


_FORMAT = "rnnscan"
# The version of the names and shapes in a file. Change it with them.
_LAYOUT = "1"
# The name of what a file says of itself.
_METADATA = "__metadata__"
# What its reader makes arrays of.
_DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "complex64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
)


def save(path: str | Path, net: Any, params: Any) -> None:
    """Write parameters to a safetensors file.

    Each array is named by its path, such as `"net_0/forward/kernel"`. The metadata holds the versions of rnnscan and of
    the layout, `repr(net)`, and a digest of the arrays.

    Args:
        path: the file.
        net: the net. Only its `repr` is written.
        params: its parameters: nested dictionaries of arrays.

    Raises:
        TypeError: if the parameters are not dictionaries of arrays, or safetensors does not support a dtype.
        ImportError: if safetensors is not installed.

    Example:
        >>> import tempfile, jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import safetensors
        >>> net = rs.layer(rs.cells.GRU(4))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     safetensors.save(f"{folder}/gru.safetensors", net, params)
        ...     loaded = safetensors.load(f"{folder}/gru.safetensors", net)
        >>> bool((loaded["kernel"] == params["kernel"]).all())
        True
    """
    numpy_files = _import("safetensors.numpy")
    tensors = _flatten(params)
    metadata = {
        "format": _FORMAT,
        "layout": _LAYOUT,
        "rnnscan": version("rnnscan"),
        "net": repr(net),
        "sha256": _digest(tensors),
    }
    numpy_files.save_file(tensors, str(path), metadata=metadata)


def load(path: str | Path, net: Any = None) -> Any:
    """Read parameters that `save` wrote.

    Args:
        path: the file.
        net: the net that the parameters must fit. None: any.

    Returns:
        The parameters. Float64 stays float64 if `jax_enable_x64` is on.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is truncated, altered or not rnnscan's, or its parameters do not fit the net.
        ImportError: if safetensors is not installed.
    """
    files = _import("safetensors")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load: there must be a file {str(path)!r}; got none.")
    try:
        with files.safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except files.SafetensorError as error:
        raise ValueError(f"load: {str(path)!r} must be a complete safetensors file; got {error}.") from error
    if metadata.get("format") != _FORMAT:
        raise ValueError(
            f"load: {str(path)!r} must be a file that rnnscan wrote; got the tensors {listing(sorted(tensors))} "
            "without its metadata. Read it with safetensors.numpy.load_file, then convert the tensors, for example "
            "with from_torch."
        )
    if metadata.get("layout") != _LAYOUT:
        raise ValueError(
            f"load: {str(path)!r} must be of layout {_LAYOUT}; got layout {metadata.get('layout')}, of rnnscan "
            f"{metadata.get('rnnscan')}."
        )
    if metadata.get("sha256") != _digest(tensors):
        raise ValueError(f"load: {str(path)!r} must be unaltered; got tensors with another digest.")
    params = to_jax(_nest(tensors))
    if net is not None:
        _check_fit(path, net, params, metadata.get("net"))
    return params


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"safetensors: the extra 'interop' must be installed; got no module {error.name!r}. Run "
            'pip install ".[interop]" in the checkout of rnnscan.',
            name=error.name,
        ) from error


def _flatten(params: Any) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}

    def add(place: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                if not isinstance(name, str) or "/" in name or name in ("", _METADATA):
                    raise TypeError(
                        f"save: names must be strings without '/', and not {_METADATA!r}, which safetensors keeps for "
                        f"itself; got {name!r} at {place or 'the top'!r}."
                    )
                add(f"{place}/{name}" if place else name, inner)
        elif hasattr(value, "shape") and hasattr(value, "dtype") and place:
            if jnp.dtype(value.dtype).name not in _DTYPES:
                raise TypeError(
                    f"save: safetensors has no {value.dtype}; got {describe(value)} at {place!r}. Cast it to one of "
                    f"{', '.join(_DTYPES)}."
                )
            # safetensors writes the raw memory, so it must be in C order, and little-endian.
            tensors[place] = np.array(value, np.dtype(value.dtype).newbyteorder("<"), order="C")
        else:
            raise TypeError(
                "save: the parameters must be nested dictionaries of arrays, none of them empty; got "
                f"{describe(value)} at {place or 'the top'!r}."
            )

    add("", params)
    return tensors


def _nest(tensors: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for place, tensor in tensors.items():
        *keys, name = place.split("/")
        inner = nested
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[name] = tensor
    return nested


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _check_fit(path: Path, net: Any, params: Any, saved: str | None) -> None:
    """Check that the net has such parameters for some input size."""
    shapes = {name: tensor.shape for name, tensor in _flatten_shapes(params).items()}
    sizes = sorted({size for shape in shapes.values() for size in shape})
    faults, refusals = list[list[str]](), list[str]()
    for size in sizes:
        try:
            faults.append(_faults(shapes, net, size))
        except (TypeError, ValueError) as error:  # Nets such as residual ones take inputs of one size.
            refusals.append(str(error))
    fewest = min(faults, key=len, default=refusals[:1] or ["no tensors"])
    if fewest:
        raise ValueError(
            f"load: the parameters in {str(path)!r} must be those of {net!r}; got those of {saved}: "
            f"{'; '.join(fewest)}."
        )


def _flatten_shapes(params: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(key.key for key in path): leaf for path, leaf in leaves}


def _faults(shapes: dict[str, tuple[int, ...]], net: Any, input_size: int) -> list[str]:
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), input_size))
    expected = {name: leaf.shape for name, leaf in _flatten_shapes(params).items()}
    faults = [f"missing {name!r}" for name in expected if name not in shapes]
    faults += [f"unknown {name!r}{nearest(name, expected)}" for name in shapes if name not in expected]
    return faults + [
        f"{name!r} must be {shape}, and is {shapes[name]}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
