"""PRNG keys for cells with randomness, such as dropout.

Called directly, such a cell is deterministic, for evaluation. For training, `with_key` binds a key to it, and each
input comes with the index of its step. Masks depend only on the key, their site and that index, so recomputed steps and
windows of a sequence draw the same masks.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._callers import calling_line
from rnnscan._util.messages import is_float
from rnnscan._util.sources import named_after
from rnnscan._util.trace_context import trace_context, tracing_with


RandomStep: TypeAlias = Callable[[Any, Any, tuple[Any, Any]], tuple[Any, Any]]


def with_key(cell: Any, key: Array, params: Any, x: Any) -> RandomStep:
    """Bind a PRNG key to a cell.

    Masks that a whole sequence shares, as in variational dropout, are drawn here, outside the loop over steps. Masks of
    a single step are drawn from the key and the step's index.

    Args:
        cell: a cell, random or not.
        key: a PRNG key. Each site, such as each layer of a stack, derives its own from it.
        params: the parameters of the cell. Only their shapes matter.
        x: one step's input. Only its shape matters.

    Returns:
        A cell over pairs `(x, index)`, where `index` is the integer index of the step.

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

    step = cell.with_key(key, params, x) if hasattr(cell, "with_key") else named_after(plain_step, cell)
    return KeyedCell(step, cell) if hasattr(cell, "initial_carry") else step


@dataclass(frozen=True, repr=False)
class KeyedCell:
    """A cell with its key. Made by `with_key`.

    Attributes:
        step: `(params, carry, (x, index)) -> (carry, y)`.
        cell: the cell, for its initial carry.
    """

    step: RandomStep
    cell: Any

    def __call__(self, params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
        """One random step: `(params, carry, (x, index)) -> (carry, y)`."""
        return self.step(params, carry, scanned)

    @property
    def __wrapped__(self) -> Any:
        """The cell, which JAX's messages name."""
        return self.cell

    def __repr__(self) -> str:
        """The cell, which has a key."""
        return f"{self.cell!r} with a key"

    def initial_carry(self, scanned: tuple[Any, Any]) -> Any:
        """The cell's initial carry, for one step's input and its index."""
        return self.cell.initial_carry(scanned[0])


def drop(value: Array, kept: Array, rate: float) -> Array:
    """Set values to zero where `kept` is false, and scale the others to preserve the mean."""
    return jnp.where(kept, value / (1 - rate), 0).astype(value.dtype)


class NoKeyWarning(UserWarning):
    """Random choices, such as dropout, are off in a gradient, because the call has no `key`.

    It comes once a process for each cell. Filter it to differentiate an evaluation:

    Example:
        >>> import warnings
        >>> import rnnscan as rs
        >>> warnings.filterwarnings("ignore", category=rs.NoKeyWarning)
    """


_warned: set[str] = set()


def without_key_on_purpose() -> AbstractContextManager[None]:
    """A context for reports, which differentiate calls without a key."""
    return tracing_with(is_report=True)


def warns_without_key() -> bool:
    """Whether calls without a key warn where they are differentiated."""
    return not trace_context().is_report


_LIBRARIES = "rnnscan|jax|flax|contextlib"
# Between a rule and what differentiates it.
_AROUND_RULES = r"rnnscan\.(?:_callers|randomness)|jax|contextlib"
_PASS_KEY = "Pass key=jax.random.key(0), and another key at each step of training."


def warn_if_differentiated(
    results: Any, function: str, cell: str, *, lacking: str = "a `key`", remedy: str = _PASS_KEY
) -> Any:
    """The results of a call without a key. Where JAX differentiates them, it warns, once for each cell.

    Args:
        results: a pytree of arrays.
        function: the name of the function that was called.
        cell: what makes random choices, in words.
        lacking: what the call lacks.
        remedy: how to pass it, in a sentence.
    """
    called_at = calling_line(_LIBRARIES)

    @jax.custom_jvp
    def same(leaf: Any) -> Any:
        return leaf

    @same.defjvp
    def warn(primals: Any, tangents: Any) -> Any:
        if cell not in _warned:
            _warned.add(cell)
            # A kept program may come from another call than the one that is differentiated now.
            is_in_call = calling_line(_AROUND_RULES).module.startswith("rnnscan.")
            line = calling_line(_LIBRARIES) if is_in_call else called_at
            line.warn(
                f"{function}: {cell} makes random choices in training, and is differentiated without {lacking}, so it "
                f"makes none. {remedy} To differentiate an evaluation, ignore rnnscan.NoKeyWarning.",
                NoKeyWarning,
            )
        return primals[0], tangents[0]

    return jax.tree.map(lambda leaf: same(leaf) if is_float(leaf) else leaf, results)
