"""What follows from a jaxpr and other data, remembered as long as the jaxpr lives."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from jax.extend import core


Function = TypeVar("Function", bound=Callable[..., Any])


def cached_by_jaxpr(function: Function) -> Function:
    """Remember the results of a function `(closed jaxpr, *data) -> result`, by the jaxpr and by the data's equality.

    No result may hold its jaxpr, which would then stay for ever.
    """
    known: WeakKeyDictionary[core.Jaxpr, dict[Any, Any]] = WeakKeyDictionary()

    @wraps(function)
    def cached(closed: core.ClosedJaxpr, *data: Any) -> Any:
        results = known.setdefault(closed.jaxpr, {})
        if data not in results:
            results[data] = function(closed, *data)
        return results[data]

    return cast(Function, cached)
