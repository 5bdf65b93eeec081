"""Compiled programs of calls outside `jax.jit`, cached by cell, options and shapes.

`scan` jits a whole call, checks included, once per cell, as `lax.scan` caches the trace of a function. Calls inside a
jitted function need no cache.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
import numpy as np
from jax import lax

from rnnscan.engine.cache.bounded_cache import BoundedCache
from rnnscan.engine.cache.closure_values import closure_values, contents_of, warn_of_changes
from rnnscan.engine.costs.heuristics import following
from rnnscan.ir.invalid_values import search_first


# (cell, **arrays, **options) -> results
Run = Callable[..., Any]

# The most cells that compare by value. A program keeps such a cell alive, but never a function, which may close over
# anything.
_CELLS = 128
# The most programs of one cell, each for one choice of options and shapes.
_PROGRAMS = 64
_of_functions: WeakKeyDictionary[Any, BoundedCache] = WeakKeyDictionary()


class ClosesOverArraysError(Exception):
    """Raised while tracing a cell that closes over arrays, because they may change before the next call."""


def run_compiled(run: Run, cell: Any, arrays: dict[str, Any], options: dict[str, Any]) -> Any:
    """Run a call with its cached program, or directly if it cannot be cached.

    A cell that closes over arrays is traced at each call, because they may be others then. Its scans are equations
    whose steps take these arrays as operands, so that equal ones share a compiled program (`run_by_program`).

    Args:
        run: `run(cell, **arrays, **options)`. With `kept=True`, for the trace of a program, it raises
            `ClosesOverArraysError` for cells that do.
        cell: the cell. Plain functions are cached by identity, and other cells if they compare by value.
        arrays: pytrees of arrays by name, the arguments of the program.
        options: the other options, constants of the program.

    Returns:
        The result of `run`.
    """
    run_directly = partial(run, cell, **arrays, **options)
    if _is_staged() or not _are_arrays(arrays):
        return run_directly()
    programs = _programs_of(cell)
    values = closure_values(cell)
    # With types, because 2.0 == 2 and True == 1, and a cached program does not run its checks again.
    key = (run, _types(arrays), *values.numbers, *((name, type(value), value) for name, value in options.items()))
    if programs is None or not _is_hashable(key):
        warn_of_changes(cell, values.arrays)
        return run_directly()
    if programs.get(key) is not _NOT_KEPT:
        try:
            with following(arrays):
                return _run_program(programs, key, values.arrays, _traceable(run, cell, options), arrays)
        except (
            ClosesOverArraysError,
            jax.errors.ConcretizationTypeError,
            jax.errors.TracerArrayConversionError,
            jax.errors.TracerIntegerConversionError,
        ):
            # The cell reads concrete values of its parameters, which it has only outside of jit, or closes over arrays.
            programs[key] = _NOT_KEPT
    warn_of_changes(cell, values.arrays)
    return run_directly()


def _run_program(
    programs: BoundedCache, key: tuple[Any, ...], read: Sequence[np.ndarray], call: Callable[..., Any], arrays: Any
) -> Any:
    """Run the program of a call. It holds what its trace read from NumPy arrays, such as an item, so these are a key.

    Args:
        programs: the programs of the cell.
        key: the key of the call.
        read: the NumPy arrays that the cell reads.
        call: the call as a function of its arrays, to compile if there is no program.
        arrays: the arrays.
    """
    program = programs.get((*key, *contents_of(read)))
    if program is not None:
        return program(**arrays)
    program = jax.jit(call)
    results = program(**arrays)
    programs[(*key, *contents_of(read))] = program  # As the trace leaves them, because it may count itself in one.
    return results


_NOT_KEPT = object()
# They compare by identity and do not change.
_UNCHANGING = (type(None), type, FunctionType, BuiltinFunctionType, jax.custom_jvp, jax.custom_vjp, type(jax.jit(len)))


def _programs_of(cell: Any) -> BoundedCache | None:
    """The programs of a cell by options; None for a cell that may change without comparing unequal."""
    if isinstance(cell, FunctionType):
        return _of_functions.setdefault(cell, BoundedCache(_PROGRAMS))
    return _of_values(cell) if _is_hashable(cell) and _compares_by_value(cell) else None


@lru_cache(maxsize=_CELLS)
def _of_values(cell: Hashable) -> BoundedCache:
    return BoundedCache(_PROGRAMS)


def _types(arrays: dict[str, Any]) -> Hashable:
    leaves, structure = jax.tree.flatten(arrays)
    return structure, tuple(map(jax.typeof, leaves))


def _traceable(run: Run, cell: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """The call as a function of its arrays. It keeps no plain function alive."""
    find: Callable[[], Any] = ref(cell) if isinstance(cell, FunctionType) else lambda: cell

    def scan(**arrays: Any) -> Any:
        run_cell = partial(run, find(), kept=True, **options)
        search_first(lambda arrays: run_cell(**arrays), arrays)
        return run_cell(**arrays)

    return scan


def _is_staged() -> bool:
    """Whether the current operations are traced: under `jit`, or in the body of a loop."""
    # An iota, because a constant would be moved to the device, which `jax.transfer_guard("disallow")` forbids.
    return isinstance(lax.iota(np.int32, 1), jax.core.Tracer)


def _are_arrays(tree: Any) -> bool:
    """Whether all leaves mean the same as arguments of a jitted function as outside of it."""
    return all(isinstance(leaf, jax.Array | np.ndarray | np.generic | float) for leaf in jax.tree.leaves(tree))


def _compares_by_value(part: Any) -> bool:
    """Whether equal cells behave equally: a cell, or a field of one, holds no mutable object."""
    if isinstance(part, _UNCHANGING):
        return True
    if isinstance(part, tuple):
        return all(map(_compares_by_value, part))
    if isinstance(part, MethodType):  # They are equal for one object, which may have changed.
        return _compares_by_value(part.__self__)
    by_identity: Any = object.__hash__
    inner = [getattr(part, field.name) for field in fields(part)] if is_dataclass(part) else []
    return type(part).__hash__ is not by_identity and all(map(_compares_by_value, inner))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:  # A field may be an array or a list.
        return False
    return True
