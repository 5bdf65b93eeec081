"""The inputs and outputs of `rnnscan run`: arrays in npz files and lines of JSON."""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_map_with_path

from rnnscan._util.messages import leaves_of_one_name


# What an npz file begins with.
_ZIP = b"PK"


class Record(NamedTuple):
    """Inputs that were read.

    Attributes:
        place: where, for messages.
        inputs: pytrees of arrays by the names of the inputs.
        is_npz: whether they are those of an npz file.
    """

    place: str
    inputs: dict[str, Any]
    is_npz: bool


def read_records(file: Any, specs: Mapping[str, Any]) -> Iterator[Record]:
    """The inputs in a file: those of an npz file, or of each line of JSON.

    Nothing is unpickled.

    Args:
        file: the file, opened in binary. A line is read when it is needed.
        specs: the specs of the inputs, pytrees of `ArraySpec`, by name.

    Raises:
        ValueError: if it is neither, or holds other things than numbers.
        TypeError: if numbers do not fit a dtype.
    """
    first = file.readline()
    if first.startswith(_ZIP):
        yield Record("the npz file", _from_npz(first + file.read(), specs), is_npz=True)
        return
    number, line = 1, first
    while line:
        if line.strip():
            yield Record(f"line {number}", _from_line(line, f"line {number}", specs), is_npz=False)
        number, line = number + 1, file.readline()


def to_line(tree: Any) -> str:
    """A pytree of arrays as a line of JSON. Each number is exact.

    Example:
        >>> to_line({"ys": (np.float32([1, 0.1]), None)})
        '{"ys": [[1.0, 0.10000000149011612], null]}'
    """
    return json.dumps(jax.tree.map(lambda leaf: _plain(leaf).tolist(), tree))


def to_npz(tree: Any) -> bytes:
    """A pytree of arrays as an npz file, by their paths, such as `0/hidden`; `output` if it is one array.

    Types that NumPy does not have, such as bfloat16, become float32.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:  # `np.savez` takes names as arguments, beside its own.
        for path, leaf in leaves:
            name = keystr(path, simple=True, separator="/") or "output"
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(leaf), allow_pickle=False)
    return content.getvalue()


def check_npz_names(tree: Any) -> None:
    """Raise a ValueError if two leaves of a pytree have one name in an npz file."""
    if found := leaves_of_one_name(tree, "/"):
        name, one, other = found
        raise ValueError(
            f"run: the names of outputs must differ in an npz file; got {one} and {other}, which are both {name!r}. "
            "Write lines of JSON."
        )


def _plain(leaf: Any) -> np.ndarray:
    value = np.asarray(leaf)
    return value if value.dtype.isbuiltin == 1 else value.astype(np.float32)


def _from_line(line: bytes, place: str, specs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        inputs = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"run: the input must be an npz file or lines of JSON; got {error} in {place}.") from error
    if not isinstance(inputs, dict):
        raise ValueError(
            f"run: a line must be an object with the inputs by name, {_shown(specs)}; got {type(inputs).__name__} in "
            f"{place}."
        )
    return {name: _as_tree(value, specs.get(name), f"{place}, {name!r}") for name, value in inputs.items()}


def _as_tree(value: Any, spec: Any, place: str) -> Any:
    """A value of JSON as a pytree of arrays. Where it has another structure than the specs, it stays as it is."""
    if isinstance(spec, dict) and isinstance(value, dict):
        return {name: _as_tree(part, spec.get(name), f"{place}, {name!r}") for name, part in value.items()}
    if isinstance(spec, list | tuple) and isinstance(value, list) and len(spec) == len(value):
        pairs = enumerate(zip(value, spec, strict=True))
        return type(spec)(_as_tree(part, one, f"{place}[{number}]") for number, (part, one) in pairs)
    return _as_array(value, spec, place) if hasattr(spec, "dtype") else value


def _as_array(value: Any, spec: Any, place: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"run: {place} must be {spec}; got lists of different lengths.") from error
    dtype = jnp.dtype(spec.dtype)
    if dtype.kind == "b":
        fits = array.dtype.kind == "b"
    elif jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        fits = array.dtype.kind in "iu" and bool(((array >= limits.min) & (array <= limits.max)).all())
    else:
        fits = array.dtype.kind in "iuf" and dtype.kind != "c"
    if not fits:
        raise TypeError(f"run: {place} must be lists of numbers for {spec}; got {json.dumps(value)[:40]}.")
    return array.astype(dtype)


def _from_npz(content: bytes, specs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
        raise ValueError(f"run: the npz file must be whole, with arrays of numbers; got {error}.") from error

    def take(name: str, path: Any, spec: Any) -> Any:
        key = "/".join(filter(None, (name, keystr(path, simple=True, separator="/"))))
        if key not in arrays:
            raise ValueError(f"run: the npz file must have the inputs {_shown(specs)}; got none named {key!r}.")
        array, dtype = arrays.pop(key), jnp.dtype(spec.dtype)
        # NumPy cannot write these types, so they come as float32.
        return array.astype(dtype) if dtype.isbuiltin != 1 and array.dtype == np.float32 else array

    inputs = {
        name: tree_map_with_path(lambda path, spec, name=name: take(name, path, spec), tree)
        for name, tree in specs.items()
    }
    if arrays:
        raise ValueError(
            f"run: the npz file must have the inputs {_shown(specs)} only; got {next(iter(arrays))!r} too. Leave it "
            "out."
        )
    return inputs


def _shown(specs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {jax.tree.map(str, spec)}" for name, spec in specs.items())
