"""Cells that read their own last outputs."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from rnnscan._util.arguments import check_step_input
from rnnscan._util.dtypes import promoted
from rnnscan._util.messages import describe, is_count
from rnnscan._util.zeros import zeros_sharded_like
from rnnscan.compose.output import output_of
from rnnscan.compose.wrapper import Wrapper
from rnnscan.protocols import ComposableCell, check_cell
from rnnscan.randomness import RandomStep, with_key


@dataclass(frozen=True)
class Windowed(Wrapper):
    """A cell that reads its own last outputs. Made by `windowed`."""

    window: int

    @property
    def output_part(self) -> None:
        """None: y is not a separate part of the carry."""
        return

    def init(self, key: Array, input_size: int) -> Any:
        """Make parameters: those of the inner cell, for the concatenated input and window."""
        return self.cell.init(key, input_size + self.window * self.cell.output_size)

    def initial_carry(self, x: Array) -> tuple[Any, Array]:
        """The inner cell's carry, and a window of zeros `(N, window, P)`."""
        check_step_input("windowed", x)
        window = self._initial_window(x)
        return self.cell.initial_carry(self._concatenate(x, window)), window

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        inner, window = carry
        inner, y = self.cell(params, inner, self._concatenate(x, window))
        return (inner, _shift(window, y)), y

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """Bind the key to the inner cell."""
        inner_step = with_key(self.cell, key, params, self._concatenate(x, self._initial_window(x)))

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            inner, window = carry
            inner, y = inner_step(params, inner, (self._concatenate(scanned[0], window), scanned[1]))
            return (inner, _shift(window, y)), y

        return step

    def _initial_window(self, x: Array) -> Array:
        shape, dtype = (*x.shape[:-1], self.window, self.cell.output_size), x.dtype
        if not jnp.issubdtype(dtype, jnp.floating):  # The outputs are no integers.
            concatenated = zeros_sharded_like(x, (*x.shape[:-1], x.shape[-1] + self.window * self.cell.output_size))
            carry = jax.tree.leaves(self.cell.initial_carry(concatenated))
            floats = [leaf.dtype for leaf in carry if jnp.issubdtype(leaf.dtype, jnp.floating)]
            dtype = promoted(*floats) if floats else jnp.float32
        return zeros_sharded_like(x, shape, dtype)

    def _concatenate(self, x: Array, window: Array) -> Array:
        expected = (*x.shape[:-1], self.window, self.cell.output_size)
        if jnp.shape(window) != expected:
            raise ValueError(
                f"windowed: the window of the carry must be {expected} for one step's input {describe(x)}; got "
                f"{describe(window)}. Batch or hidden size may differ: start from cell.initial_carry(x)."
            )
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else window.dtype
        both = x, lax.collapse(window, window.ndim - 2)
        return jnp.concatenate([leaf.astype(dtype) for leaf in both], axis=-1)


def _shift(window: Array, y: Any) -> Array:
    return jnp.concatenate([window[..., 1:, :], output_of(y)[..., None, :].astype(window.dtype)], axis=-2)


def windowed(cell: ComposableCell, window: int) -> Windowed:
    """Concatenate a cell's input with its own last outputs.

        y_t = cell([x_t; y_{t-w}; ...; y_{t-1}])

    Args:
        cell: a cell over features, without spatial axes.
        window: w, the number of outputs, at least 1.

    Returns:
        A cell. Its carry is the pair of the inner carry and the window `(N, w, P)`, oldest output first, initially
        zero. Its parameters are the inner cell's, for an input of D + w * P features.

    Raises:
        ValueError: if the window is not an integer of at least 1.
        TypeError: if `cell` is not a cell.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> cell = rs.windowed(rs.cells.GRU(4), window=2)
        >>> cell.init(jax.random.key(0), input_size=3)["kernel"].shape
        (11, 12)

    Source: the link windows of Caffe2's `recurrent_net`; with a window of one, Jordan 1986, "Serial Order: A Parallel
    Distributed Processing Approach".
    """
    check_cell("windowed", cell)
    if not is_count(window):
        raise ValueError(f"windowed: `window` must be an integer of at least 1; got {window!r}.")
    return Windowed(cell, window)
