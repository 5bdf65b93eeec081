"""Named values that are kept: taken out of the forward pass, and put back in place of what made them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from rnnscan.engine.fission.trace import mark
from rnnscan.naming import Names, PositionReader, reading


class _Marker(PositionReader):
    def __init__(self, kept: frozenset[str], names: Names) -> None:
        super().__init__(kept, names)
        self.shapes: dict[int, tuple[int, ...]] = {}

    def keep(self, position: int, leaf: Any, label: str) -> Any:
        self.shapes[position] = leaf.shape
        return mark(leaf, str(position))


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
def marking(kept: frozenset[str], names: Names) -> Iterator[dict[int, tuple[int, ...]]]:
    """Trace a step inside this context, and the values that the names keep are marked by their position.

    Gives the shape that each of them has where it is named: within a vmap that is not the shape of the marked value.
    """
    marker = _Marker(kept, names)
    with reading(marker):
        yield marker.shapes


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
