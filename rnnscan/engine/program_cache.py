"""Compiled programs of calls outside `jax.jit`, one for each cell, choice of options and shapes.

`lax.scan` keeps what it traced and compiled for a function that it has seen. So does `scan`: the whole call, checks
included, is jitted once per cell. A call inside a jitted function needs none of this and runs as it is.
"""

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
import numpy as np
from jax import lax


# (cell, *arrays, **options) -> results
Run = Callable[..., Any]

# A program keeps a cell that compares by value alive, and never a function, which may close over anything.
_PROGRAMS = 128
_of_functions: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


class ClosesOverArraysError(Exception):
    """Raised while a program is traced for a cell that closes over arrays, which may be others at the next call."""


def run_compiled(run: Run, cell: Any, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run a call by the program that is kept for it, or as it is where none can be kept.

    Args:
        run: `run(cell, *arrays, **options)`. With `kept=True`, as it is traced for a program, it raises
            `ClosesOverArraysError` for a cell that does.
        cell: the cell. A program is kept for plain functions, by identity, and for what compares by value.
        arrays: pytrees of arrays, which the program takes as arguments.
        options: the other options, which it is compiled for.

    Returns:
        What `run` returns.
    """
    run_as_it_is = partial(run, cell, *arrays, **options)
    if _is_staged() or not _are_arrays(arrays):
        return run_as_it_is()
    programs = _programs_of(cell)
    # With their types: 2.0 equals 2 and True equals 1, and the checks of a kept program do not run again.
    key = (run, *((name, type(value), value) for name, value in options.items()))
    if programs is None or not _is_hashable(key):
        return run_as_it_is()
    program = programs.get(key)
    if program is None:
        program = programs[key] = jax.jit(_traceable(run, cell, options))
    if program is _NOT_KEPT:
        return run_as_it_is()
    try:
        return program(*arrays)
    except ClosesOverArraysError:
        programs[key] = _NOT_KEPT
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ):
        # The cell asks for the values of its parameters, which it has outside of jit.
        programs[key] = _NOT_KEPT
    return run_as_it_is()


_NOT_KEPT = object()
# What compares by identity and does not change.
_UNCHANGING = (type(None), type, FunctionType, BuiltinFunctionType, jax.custom_jvp, jax.custom_vjp, type(jax.jit(len)))


def _programs_of(cell: Any) -> dict[Hashable, Any] | None:
    """The programs of a cell by their options; None for a cell whose behaviour its identity does not tell."""
    if isinstance(cell, FunctionType):
        return _of_functions.setdefault(cell, {})
    return _of_values(cell) if _compares_by_value(cell) and _is_hashable(cell) else None


@lru_cache(maxsize=_PROGRAMS)
def _of_values(cell: Hashable) -> dict[Hashable, Any]:
    return {}


def _traceable(run: Run, cell: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """The call as a function of its arrays, which does not keep a function alive that it calls."""
    find: Callable[[], Any] = ref(cell) if isinstance(cell, FunctionType) else lambda: cell

    def scan(*arrays: Any) -> Any:
        return run(find(), *arrays, kept=True, **options)

    return scan


def _is_staged() -> bool:
    """Whether what runs now is traced into a program: under `jit`, or in the body of a loop."""
    return isinstance(lax.full((), 0), jax.core.Tracer)


def _are_arrays(tree: Any) -> bool:
    """Whether all leaves can be arguments of a jitted function that mean there what they mean outside of it."""
    return all(isinstance(leaf, jax.Array | np.ndarray | np.generic | float) for leaf in jax.tree.leaves(tree))


def _compares_by_value(part: Any) -> bool:
    """Whether equal cells do the same: a cell, or a part of one, that holds no object which may change."""
    if isinstance(part, _UNCHANGING):
        return True
    if isinstance(part, tuple):
        return all(map(_compares_by_value, part))
    by_identity: Any = object.__hash__
    inner = [getattr(part, field.name) for field in fields(part)] if is_dataclass(part) else []
    return type(part).__hash__ is not by_identity and all(map(_compares_by_value, inner))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:  # A field of it is an array or a list, say.
        return False
    return True
