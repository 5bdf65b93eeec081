"""The base of cells that wrap one other cell, and checks of their arguments."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array

from rnnscan._util import pytrees
from rnnscan.protocols import ComposableCell


@dataclass(frozen=True)
class Wrapper:
    """A cell around another, with the parameters, carry, names and sizes of the inner cell by default."""

    cell: ComposableCell

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        pytrees.register(cls, "cell")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inner cell's intermediates."""
        return self.cell.names

    @property
    def output_size(self) -> int:
        """The size of y's last axis."""
        return self.cell.output_size

    @property
    def input_axes(self) -> tuple[Any, ...]:
        """The spatial axes of the input. Missing if the inner cell does not have the attribute."""
        cell: Any = self.cell
        return cell.input_axes

    @property
    def output_part(self) -> int | None:
        """The index of the part of the new carry that equals y, or None."""
        return getattr(self.cell, "output_part", None)

    def init(self, key: Array, input_size: int) -> Any:
        """Make parameters: those of the inner cell."""
        return self.cell.init(key, input_size)

    def initial_carry(self, x: Array) -> Any:
        """The carry of zeros, typed like one step's input: the inner cell's."""
        return self.cell.initial_carry(x)


def cells_within(cell: Any) -> list[Any]:
    """List a cell and all cells inside it."""
    inner = [getattr(cell, "cell", None), *getattr(cell, "cells", ())]
    return [cell, *(each for part in inner if part is not None for each in cells_within(part))]


def check_rate(function: str, argument: str, rate: Any) -> None:
    """Check that a rate is a probability below 1.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(f"{function}: `{argument}` must be a probability, at least 0 and below 1; got {rate!r}.")
