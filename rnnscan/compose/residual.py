"""A cell whose input is added to its output."""

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array

from rnnscan._messages import describe
from rnnscan.compose.output import output_of, with_output
from rnnscan.compose.random import RandomStep, with_key
from rnnscan.compose.wrapper import Wrapper
from rnnscan.protocols import ComposableCell, check_cell


@dataclass(frozen=True)
class Residual(Wrapper):
    """A cell whose input is added to its output. Made by `residual`."""

    @property
    def output_part(self) -> None:
        """None: y is not a part of the carry."""
        return

    def init(self, key: Array, input_size: int) -> Any:
        """Make parameters: those of the inner cell.

        Raises:
            ValueError: if the cell's output is not as large as its input.
        """
        if input_size != self.cell.output_size:
            raise ValueError(
                f"residual: input and output must be of one size to be added; got input_size={input_size} for "
                f"{self.cell}, whose output has {self.cell.output_size}. Leave this layer without `residual`."
            )
        return self.cell.init(key, input_size)

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        carry, y = self.cell(params, carry, x)
        return carry, self._sum(x, y)

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """The inner cell's random choices; this one makes none."""
        inner = with_key(self.cell, key, params, x)

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            carry, y = inner(params, carry, scanned)
            return carry, self._sum(scanned[0], y)

        return step

    def _sum(self, x: Any, y: Any) -> Any:
        output = output_of(y)
        if jax.numpy.shape(x) != jax.numpy.shape(output):
            raise ValueError(
                f"residual: input and output must be of one shape to be added; got the input {describe(x)} and, from "
                f"{self.cell}, the output {describe(output)}. Leave this layer without `residual`."
            )
        return with_output(y, output + x.astype(output.dtype))


def residual(cell: ComposableCell) -> Residual:
    """Add a cell's input to its output, `y = cell(x) + x`.

    Where y is a tuple, as an attention decoder's, the input is added to its first value.

    Args:
        cell: a cell whose output is as large as its input.

    Returns:
        A cell, with the parameters and the carry of the inner one.

    Raises:
        TypeError: if it is no cell.
        ValueError: in `init` or in a step, if input and output differ in size.

    Example:
        >>> import rnnscan as rs
        >>> cell = rs.stack(rs.cells.LSTM(8), rs.residual(rs.cells.LSTM(8)))
        >>> cell.output_size
        8

    Source: He et al. 2015, "Deep Residual Learning for Image Recognition"; for recurrent layers Wu et al. 2016,
    "Google's Neural Machine Translation System", equation 6.
    """
    check_cell("residual", cell)
    return Residual(cell)
