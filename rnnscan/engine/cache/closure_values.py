"""The values that functions read from their closures and modules.

A trace holds numbers as constants, so they are in the keys of cached programs; what it reads from NumPy arrays, such as
an item, too. Whole arrays are operands of scans, whose step is traced at each call. But JAX keeps the copy that it
makes of a NumPy array of another dtype, such as float64, so a change in place may not show.
"""

import dis
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import ref
from zlib import crc32

import jax
import numpy as np

from rnnscan._callers import calling_line
from rnnscan._util.messages import describe, in_words


class ChangedArrayWarning(UserWarning):
    """A NumPy array that a cell reads changed in place between two calls, and JAX may keep the old values.

    It comes once a process for each array up to 1 MiB. Filter it if the array is not read:

    Example:
        >>> import warnings
        >>> import rnnscan as rs
        >>> warnings.filterwarnings("ignore", category=rs.ChangedArrayWarning)
    """


class ClosureValues(NamedTuple):
    """The values that a cell reads.

    Attributes:
        numbers: Python numbers, NumPy scalars and strings, in an order that depends on the cell's code alone, with None
            for other values.
        arrays: NumPy arrays.
    """

    numbers: list[Hashable]
    arrays: list[np.ndarray]


def closure_values(part: Any) -> ClosureValues:
    """The values that a cell reads from its closure and its module.

    They are those of a function, of functions of the same module that it calls, and of functions among the fields of a
    cell. Items of lists, dictionaries and objects are left out: a function that counts its traces changes them.

    Args:
        part: a cell, or a field of one.
    """
    numbers, arrays, seen, waiting = list[Hashable](), list[np.ndarray](), dict[int, Any](), [part]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, FunctionType):
            for value in _values_read(part):
                numbers.append(_comparable(value) if isinstance(value, _NUMBERS) else None)
                if isinstance(value, FunctionType) and value.__globals__ is part.__globals__:
                    waiting.append(value)
                elif type(value) is np.ndarray:
                    arrays.append(value)
        elif isinstance(part, MethodType):
            waiting.append(part.__func__)
        elif isinstance(part, ref):  # Of a plain function, which a cached program does not keep alive.
            waiting.append(part())
        elif isinstance(part, tuple):
            waiting.extend(part)
        elif is_dataclass(part) and not isinstance(part, type):
            waiting.extend(getattr(part, field.name, None) for field in fields(part))  # Without variables of the class.
    return ClosureValues(numbers, arrays)


def warn_of_changes(cell: Any, arrays: Sequence[np.ndarray]) -> None:
    """Warn of arrays that changed in place since an earlier call, if JAX keeps a copy of them.

    Args:
        cell: the cell that reads them.
        arrays: the arrays. Those above 1 MiB are not compared.
    """
    for array in filter(_is_cast, arrays):
        checksum, known = _checksum(array), _seen.get(array)
        if known is None:
            _seen.set(array, checksum)
        elif known not in (checksum, _WARNED):
            _seen.set(array, _WARNED)
            copy = jax.dtypes.canonicalize_dtype(array.dtype)
            calling_line("rnnscan").warn(
                f"scan: {in_words(cell)} reads a NumPy array, {describe(array)}, that changed in place since an "
                f"earlier call. JAX may keep its {copy} copy with the old values. Pass the array in `params` or "
                "`xs`, or make a new array in place of changing one.",
                ChangedArrayWarning,
            )


def contents_of(arrays: Sequence[np.ndarray]) -> tuple[Hashable, ...]:
    """What tells the contents of arrays apart, up to 1 MiB each; of larger ones the shape and dtype."""
    return tuple((array.shape, array.dtype.str, _checksum(array)) for array in arrays)


def _checksum(array: np.ndarray) -> int:
    """A number by contents. Comparing them with a copy takes a fifth of the time, so each change is summed up once."""
    if array.nbytes > _MOST_BYTES:
        return 0
    data, known = array.tobytes(), _sums.get(array)
    if known is None or known[0] != data:
        known = data, crc32(data)
        _sums.set(array, known)
    return int(known[1])


class _ByArray:
    """A value of each array, as long as the array lives. Arrays have no hash."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, Any]] = {}

    def get(self, array: np.ndarray) -> Any:
        """The value of an array, or None."""
        live, value = self._values.get(id(array), (lambda: None, None))
        return value if live() is array else None

    def set(self, array: np.ndarray, value: Any) -> None:
        """Set the value of an array."""
        forget = lambda _, key=id(array): self._values.pop(key, None)  # noqa: E731
        self._values[id(array)] = ref(array, forget), value


_MOST_BYTES = 2**20
_WARNED = -1
_seen = _ByArray()  # Checksums of contents.
_sums = _ByArray()  # Contents, with their checksums.


def _is_cast(array: np.ndarray) -> bool:
    """Whether JAX computes with another dtype. An array of the same dtype is read where it is."""
    try:
        return bool(jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype)
    except TypeError:  # No dtype of JAX.
        return False


_NUMBERS = (bool, int, float, complex, str, np.generic)


def _comparable(value: Any) -> Hashable:
    """A value by which equal numbers compare equal, NaN too, and 1, 1.0 and True do not."""
    return type(value), repr(value) if value != value else value


def _values_read(function: FunctionType) -> Iterator[Any]:
    """The values that a function reads from its closure and its module. Names that it also sets are left out."""
    free, of_module = _names(function.__code__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name in free:
            try:
                yield cell.cell_contents
            except ValueError:  # Not set yet.
                yield None
    for name in of_module:
        yield function.__globals__.get(name)


@lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[frozenset[str], list[str]]:
    """The names of the closure, and of the module, that code, and functions within it, read and do not set."""
    free, read, written = {*code.co_freevars}, dict[str, None](), set[str]()
    codes = [code]
    while codes:
        inner = codes.pop()
        codes += [const for const in inner.co_consts if isinstance(const, CodeType)]
        for instruction in dis.get_instructions(inner):
            if instruction.opname == "STORE_DEREF":
                free.discard(instruction.argval)
            elif instruction.opname == "LOAD_GLOBAL":
                read[instruction.argval] = None
            elif instruction.opname == "STORE_GLOBAL":
                written.add(instruction.argval)
    return frozenset(free), [name for name in read if name not in written]
