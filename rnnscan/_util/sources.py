"""The user's functions and lines in JAX's messages, in place of rnnscan's.

JAX names the function that it traces, and the innermost line outside of its own files. Of a step, these would be
wrappers of rnnscan and the lines that call the user's function.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.extend.source_info_util import register_exclusion


_Function = TypeVar("_Function", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parents[1]
# Operations of these are a user's, as a layer's of Flax are.
_WITH_STEPS = ("attention", "cells", "compose")


def _skip_own_lines() -> None:
    """Let JAX name the line of the user's call in place of lines that run its step."""
    for path in _PACKAGE.iterdir():
        if path.name not in _WITH_STEPS:
            register_exclusion(str(path))


_skip_own_lines()


def named_after(wrapper: _Function, function: Any) -> _Function:
    """Let JAX's messages name another function than the one that it traces.

    Args:
        wrapper: the function that JAX traces. It is changed.
        function: the user's function that it runs, of which the wrapper may bind the first arguments.

    Returns:
        The wrapper.
    """
    attributes: Any = wrapper
    attributes.__signature__ = _with_names_of(inspect.signature(wrapper), function)
    attributes.__wrapped__ = _innermost(function)
    return wrapper


def scope_of(cell: Any) -> AbstractContextManager[None]:
    """The `jax.named_scope` of a cell's scan, which profilers show."""
    return jax.named_scope(scope_name(cell))


def scope_name(cell: Any) -> str:
    """The name of a cell's class or function."""
    cell = _unwrapped(cell)
    return str(getattr(cell, "__name__", type(cell).__name__))


def _innermost(function: Any) -> Any:
    """The function that a user wrote, within wrappers. Of an object that is callable, its method."""
    function = _unwrapped(function)
    method: Any = type(function).__call__
    return function if hasattr(function, "__code__") else method


def _unwrapped(function: Any) -> Any:
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return function


def _with_names_of(signature: inspect.Signature, function: Any) -> inspect.Signature:
    """The signature with the names of the last arguments of a function."""
    try:
        names = [each.name for each in inspect.signature(function).parameters.values() if each.kind in _POSITIONAL]
    except (TypeError, ValueError):  # Some callables have no signature.
        return signature
    parameters = [*signature.parameters.values()]
    count = min(len(names), len(parameters))
    if not count or any(each.kind not in _POSITIONAL for each in parameters):
        return signature
    renamed = [each.replace(name=name) for each, name in zip(parameters[-count:], names[-count:], strict=True)]
    parameters = [*parameters[:-count], *renamed]
    is_distinct = len({each.name for each in parameters}) == len(parameters)
    return signature.replace(parameters=parameters) if is_distinct else signature


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
