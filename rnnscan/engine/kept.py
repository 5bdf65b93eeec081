"""Named values that are kept: taken out of the forward pass, and put back in place of what made them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from rnnscan.naming import Names, PositionReader, current_trace, reading


class _Keeper(PositionReader):
    def __init__(self, kept: frozenset[str], names: Names) -> None:
        super().__init__(kept, names)
        self.values: dict[int, Any] = {}
        self._step = current_trace()

    def keep(self, position: int, leaf: Any, label: str) -> Any:
        # A value inside of another transformation (a vmap, a branch of a cond) cannot be taken out of it.
        if current_trace() == self._step:
            self.values[position] = leaf
        return leaf

    def forget(self) -> None:
        super().forget()
        self.values = {}


class _Restorer(PositionReader):
    def __init__(self, kept: frozenset[str], names: Names, values: Mapping[int, Any]) -> None:
        super().__init__(kept, names)
        self._values = values

    def keep(self, position: int, leaf: Any, label: str) -> Any:
        return _restored(leaf, self._values[position]) if position in self._values else leaf

    def forget(self) -> None:
        super().forget()
        self._values = {}


@contextmanager
def keeping(kept: frozenset[str], names: Names) -> Iterator[Callable[[], dict[int, Any]]]:
    """Trace a step inside this context, and call what it gives for the values that the names keep, by position."""
    keeper = _Keeper(kept, names)
    with reading(keeper):
        yield lambda: keeper.values


@contextmanager
def restoring(kept: frozenset[str], names: Names, values: Mapping[int, Any]) -> Iterator[None]:
    """Trace a step inside this context with kept values in place of those that it computes.

    Gradients flow as if the value had been computed, so what made it is differentiated, and not computed again.
    """
    with reading(_Restorer(kept, names, values)):
        yield


@jax.custom_jvp
def _restored(computed: Any, kept: Any) -> Any:
    return kept


@_restored.defjvp
def _restored_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[1], tangents[0]
