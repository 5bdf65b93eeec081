"""How cells with random choices get their keys.

Such a cell, called as every cell is, makes no choice: that is evaluation. For training, `with_key` gives it a key once
for a sequence, and the number of the step with each input. So a choice is a function of the key, of its site and of the
step: it is the same when a step is computed again, and the same whether a sequence runs in one piece or in several.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array


RandomStep: TypeAlias = Callable[[Any, Any, tuple[Any, Any]], tuple[Any, Any]]


def with_key(cell: Any, key: Array, params: Any, x: Any) -> RandomStep:
    """The cell as a step that makes its random choices.

    Choices that are made once for a sequence, such as the masks of variational dropout, are made here, outside the loop
    over steps; those that are made anew at each step depend on the key and on the number of the step.

    Args:
        cell: a cell, random or not.
        key: a PRNG key. Every site, such as each layer of a stack, derives its own from it.
        params: the parameters of the cell, of which only the shapes matter.
        x: one step's input, of which only the shape matters.

    Returns:
        A cell over pairs `(x, step)`, where `step` is the number of the step, an integer.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell = rs.dropout(rs.cells.LSTM(4), rate=0.5)
        >>> xs = jnp.ones((6, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> training = rs.with_key(cell, jax.random.key(1), params, xs[0])
        >>> carry, ys = rs.scan(training, params, cell.initial_carry(xs[0]), (xs, jnp.arange(6)))
        >>> bool((ys == 0).any())
        True
    """

    def plain_step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
        return cell(params, carry, scanned[0])

    step = cell.with_key(key, params, x) if hasattr(cell, "with_key") else plain_step
    return KeyedCell(step, cell) if hasattr(cell, "initial_carry") else step


@dataclass(frozen=True)
class KeyedCell:
    """A cell with its key. Made by `with_key`.

    Attributes:
        step: `(params, carry, (x, step number)) -> (carry, y)`.
        cell: the cell, which says where a sequence starts.
    """

    step: RandomStep
    cell: Any

    def __call__(self, params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
        """One step with random choices: `(params, carry, (x, step number)) -> (carry, y)`."""
        return self.step(params, carry, scanned)

    def initial_carry(self, scanned: tuple[Any, Any]) -> Any:
        """The cell's initial carry, for one step's input and its number."""
        return self.cell.initial_carry(scanned[0])


def drop(value: Array, kept: Array, rate: float) -> Array:
    """Zero where it is not kept, and scaled so that the mean stays, elsewhere."""
    return jnp.where(kept, value / (1 - rate), 0).astype(value.dtype)
