"""Residual connections around cells."""

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array

from rnnscan._util.messages import describe
from rnnscan.compose.output import output_of, with_output
from rnnscan.compose.wrapper import Wrapper
from rnnscan.protocols import ComposableCell, check_cell
from rnnscan.randomness import RandomStep, with_key


@dataclass(frozen=True)
class Residual(Wrapper):
    """A cell that adds its input to its output. Made by `residual`."""

    @property
    def output_part(self) -> None:
        """None: y is not part of the carry."""
        return

    def init(self, key: Array, input_size: int) -> Any:
        """Make parameters: those of the inner cell.

        Raises:
            ValueError: if input and output differ in size.
        """
        if input_size != self.cell.output_size:
            raise ValueError(
                f"residual: input and output must have the same size; got input_size={input_size} for {self.cell}, "
                f"whose output has {self.cell.output_size}. Use this layer without `residual`."
            )
        return self.cell.init(key, input_size)

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        carry, y = self.cell(params, carry, x)
        return carry, self._sum(x, y)

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """Bind the key to the inner cell."""
        inner = with_key(self.cell, key, params, x)

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            carry, y = inner(params, carry, scanned)
            return carry, self._sum(scanned[0], y)

        return step

    def _sum(self, x: Any, y: Any) -> Any:
        output = output_of(y)
        if jax.numpy.shape(x) != jax.numpy.shape(output):
            raise ValueError(
                f"residual: input and output must have the same shape; got the input {describe(x)} and the output "
                f"{describe(output)} of {self.cell}. Use this layer without `residual`."
            )
        return with_output(y, output + x.astype(output.dtype))


def residual(cell: ComposableCell) -> Residual:
    """Add a cell's input to its output, `y = cell(x) + x`.

    If y is a tuple, as in an attention decoder, the input is added to its first value.

    Args:
        cell: a cell whose output has the size of its input.

    Returns:
        A cell, with the parameters and the carry of the inner cell.

    Raises:
        TypeError: if `cell` is not a cell.
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
