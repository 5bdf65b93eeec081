"""Cells made of cells."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jaxtyping import Array

from rnnscan.messages import describe, listing


@dataclass(frozen=True)
class Stack:
    """Cells one above the other, as one cell. Made by `stack`."""

    cells: tuple[Any, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the layers give to intermediates; one name speaks of all layers."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in cell.names))

    @property
    def output_size(self) -> int:
        """The size of y's last axis: the uppermost cell's."""
        return self.cells[-1].output_size

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: `{"layer_0": ..., "layer_1": ...}`, the lowest layer first."""
        params = {}
        for layer, (cell, layer_key) in enumerate(zip(self.cells, jax.random.split(key, len(self.cells)), strict=True)):
            params[_layer_name(layer)] = cell.init(layer_key, input_size)
            input_size = cell.output_size
        return params

    def initial_carry(self, x: Array) -> tuple[Any, ...]:
        """A tuple of the layers' initial carries, typed like one step's input."""
        carries = []
        for cell in self.cells:
            carries.append(cell.initial_carry(x))
            x = lax.full_like(x, 0, shape=(*x.shape[:-1], cell.output_size))
        return tuple(carries)

    def __call__(self, params: dict[str, Any], carry: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], Any]:
        """One step of all layers: `(params, carry, x) -> (carry, y)`."""
        layers = [_layer_name(layer) for layer in range(len(self.cells))]
        if not isinstance(params, Mapping) or sorted(params) != sorted(layers):
            got = listing(params) if isinstance(params, Mapping) else describe(params)
            raise ValueError(
                f"stack: the parameters must be a dictionary with one entry for each of the {len(self.cells)} cells, "
                f"{listing(layers)}; got {got}. Make them with cell.init(key, input_size)."
            )
        if not isinstance(carry, tuple) or len(carry) != len(self.cells):
            raise TypeError(
                f"stack: the carry must be a tuple with one carry for each of the {len(self.cells)} cells; got "
                f"{jax.tree.structure(carry)}. Start from cell.initial_carry(x)."
            )
        new_carries = []
        for layer, cell, layer_carry in zip(layers, self.cells, carry, strict=True):
            new_carry, x = cell(params[layer], layer_carry, x)
            new_carries.append(new_carry)
        return tuple(new_carries), x


def stack(*cells: Any) -> Stack:
    """Stack cells: the output of each is the input of the next, within one step.

    Args:
        cells: the cells, the lowest first. Each has `init`, `initial_carry`, `names` and `output_size`, as those of
            `rnnscan.cells` have.

    Returns:
        A cell. Its carry is the tuple of the layers' carries, its parameters are `{"layer_0": ..., "layer_1": ...}`.

    Raises:
        ValueError: if there is no cell, or what the stack is given does not fit its cells.
        TypeError: if one of the cells lacks what a stack asks of it.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell = rs.stack(rs.cells.LSTM(8), rs.cells.GRU(4))
        >>> x = jnp.ones((2, 3))
        >>> carry, y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> y.shape, cell.names
        ((2, 4), ('gates',))
    """
    if not cells:
        raise ValueError("stack: there must be at least one cell; got none.")
    for cell in cells:
        lacking = [part for part in ("init", "initial_carry", "names", "output_size") if not hasattr(cell, part)]
        if lacking:
            raise TypeError(
                f"stack: every cell must have `init`, `initial_carry`, `names` and `output_size`; got "
                f"{type(cell).__name__}, without {listing(lacking)}. Cells are given one by one: stack(lower, upper)."
            )
    return Stack(cells)


def _layer_name(layer: int) -> str:
    return f"layer_{layer}"
