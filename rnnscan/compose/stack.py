"""Stacks of cells within one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array

from rnnscan._util import pytrees
from rnnscan._util.arguments import check_key
from rnnscan._util.messages import describe, listing
from rnnscan._util.zeros import zeros_sharded_like
from rnnscan.compose.dropout import dropout as drop_out
from rnnscan.compose.output import output_of
from rnnscan.compose.residual import residual as with_residual
from rnnscan.paths import part
from rnnscan.protocols import ComposableCell, check_cell
from rnnscan.randomness import RandomStep, with_key


@dataclass(frozen=True)
class Stack:
    """A stack of cells, as one cell. Made by `stack`."""

    cells: tuple[ComposableCell, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers' intermediates. A name that several layers have denotes all of them."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in cell.names))

    @property
    def output_size(self) -> int:
        """The size of y's last axis: the last cell's."""
        return self.cells[-1].output_size

    @property
    def input_axes(self) -> tuple[Any, ...]:
        """The spatial axes of the input: the first cell's. Missing if that cell does not have the attribute."""
        lowest: Any = self.cells[0]
        return lowest.input_axes

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: `{"layer_0": ..., "layer_1": ...}`, the first layer first."""
        check_key("stack", key)
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
            x = zeros_sharded_like(x, (*x.shape[:-1], cell.output_size))
        return tuple(carries)

    def __call__(self, params: dict[str, Any], carry: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], Any]:
        """One step of all layers: `(params, carry, x) -> (carry, y)`."""
        self._check(params, carry)
        new_carries = []
        y = x
        for layer, (cell, layer_carry) in enumerate(zip(self.cells, carry, strict=True)):
            with part(_layer_name(layer)):
                new_carry, y = cell(params[_layer_name(layer)], layer_carry, output_of(y) if layer else x)
            new_carries.append(new_carry)
        return tuple(new_carries), y

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """Bind a separate key to each layer."""
        steps = []
        for layer, (cell, layer_key) in enumerate(zip(self.cells, jax.random.split(key, len(self.cells)), strict=True)):
            steps.append(with_key(cell, layer_key, params[_layer_name(layer)], x))
            x = zeros_sharded_like(x, (*x.shape[:-1], cell.output_size))

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            self._check(params, carry)
            x, index = scanned
            new_carries = []
            y = x
            for layer, (layer_step, layer_carry) in enumerate(zip(steps, carry, strict=True)):
                below = output_of(y) if layer else x
                with part(_layer_name(layer)):
                    new_carry, y = layer_step(params[_layer_name(layer)], layer_carry, (below, index))
                new_carries.append(new_carry)
            return tuple(new_carries), y

        return step

    def _check(self, params: Any, carry: Any) -> None:
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


pytrees.register(Stack, "cells")


def stack(*cells: ComposableCell, residual: Sequence[int] = (), dropout: float = 0.0) -> Stack:
    """Stack cells: the output of each is the input of the next, within one step.

    The stack's y is that of its last cell. If the y of an earlier cell is a tuple, as in an attention decoder, its
    first value is the input of the next cell, and the others are discarded.

    Args:
        cells: the cells, first to last. Each has `init`, `initial_carry`, `names` and `output_size`, like those of
            `rnnscan.cells`.
        residual: the indices of the layers that add their input to their output (`rnnscan.residual`).
        dropout: the rate of dropout on the output of each layer but the last, in training (`rnnscan.dropout`). A
            residual layer adds its input after dropout.

    Returns:
        A cell. Its carry is the tuple of the layers' carries, its parameters are `{"layer_0": ..., "layer_1": ...}`.

    Raises:
        ValueError: if the list of cells is empty, an index of `residual` is out of range, or `dropout` is not a
            probability below 1; in a step, if parameters or carry do not fit the cells.
        TypeError: if a cell lacks one of the four attributes.

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
        check_cell("stack", cell)
    unknown = [layer for layer in residual if layer not in range(len(cells))]
    if unknown:
        raise ValueError(
            f"stack: `residual` must name layers from 0 to {len(cells) - 1}; got {unknown[0]!r}. The first is 0."
        )
    last = len(cells) - 1
    layers = [drop_out(cell, dropout) if dropout and layer < last else cell for layer, cell in enumerate(cells)]
    return Stack(tuple(with_residual(cell) if layer in residual else cell for layer, cell in enumerate(layers)))


def _layer_name(layer: int) -> str:
    return f"layer_{layer}"
