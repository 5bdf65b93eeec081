"""Zoneout: units that randomly keep their previous state."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._util.messages import describe
from rnnscan.compose.wrapper import Wrapper, check_rate
from rnnscan.protocols import ComposableCell, check_cell
from rnnscan.randomness import RandomStep, with_key


_PLACE = (
    "Put zoneout directly around the cell with the state, and put stacks, residuals and attention around zoneout, so "
    "that attention reads the state after zoneout."
)


@dataclass(frozen=True)
class Zoneout(Wrapper):
    """A cell whose units randomly keep their previous state. Made by `zoneout`."""

    rate: float | tuple[float, ...]

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step in expectation: `(params, carry, x) -> (carry, y)`."""
        self._check(carry)
        new_carry, y = self.cell(params, carry, x)
        expected = tuple(
            (rate * old + (1 - rate) * new).astype(new.dtype) if _holds(rate, new) else new
            for rate, old, new in zip(self._rates(carry), carry, new_carry, strict=True)
        )
        return expected, self._output(expected, y)

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """Return the step that keeps each unit's previous state with probability `rate`."""
        own_key, inner_key = jax.random.split(key)
        inner = with_key(self.cell, inner_key, params, x)

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            self._check(carry)
            new_carry, y = inner(params, carry, scanned)
            keys = jax.random.split(jax.random.fold_in(own_key, scanned[1]), len(carry))
            zoned = tuple(
                jnp.where(jax.random.bernoulli(part_key, rate, new.shape), old, new) if _holds(rate, new) else new
                for part_key, rate, old, new in zip(keys, self._rates(carry), carry, new_carry, strict=True)
            )
            return zoned, self._output(zoned, y)

        return step

    def _check(self, carry: Any) -> None:
        nested = not isinstance(carry, tuple) or any(not jax.tree_util.all_leaves([part]) for part in carry)
        if nested:
            raise TypeError(
                f"zoneout: the carry must be a tuple of arrays; got {jax.tree.map(describe, carry)} for {self.cell}. "
                f"{_PLACE}"
            )

    def _output(self, carry: tuple[Array, ...], y: Any) -> Any:
        return y if self.output_part is None else carry[self.output_part].astype(y.dtype)

    def _rates(self, carry: Any) -> tuple[float, ...]:
        rates = self.rate if isinstance(self.rate, tuple) else (self.rate,) * len(carry)
        if len(rates) != len(carry):
            raise ValueError(
                f"zoneout: there must be one rate, or one for each of the {len(carry)} parts of the carry of "
                f"{self.cell}; got {self.rate!r}."
            )
        return rates


def _holds(rate: float, part: Array) -> bool:
    """Whether units of a part of the carry may be held. Flags and counters are not floating: they never are."""
    return rate > 0 and jnp.issubdtype(part.dtype, jnp.inexact)


def zoneout(cell: ComposableCell, rate: float | tuple[float, ...]) -> Zoneout:
    """Let units randomly keep their previous state.

        s'[k] = s[k] with probability rate, otherwise cell(s)[k]        in training
        s' = rate * s + (1 - rate) * cell(s)                            in evaluation

    Masks are independent over steps, rows, units and parts of the carry. Parts that are not floating, such as flags and
    counters, take their new values. If y is a part of the carry, like the h of an
    LSTM, it is that part after zoneout.

    Args:
        cell: a cell of `rnnscan.cells`, or your own cell whose carry is a tuple of arrays. Its attribute `output_part`
            is the index of the part that equals y, or None.
        rate: the probability, at least 0 and below 1, or a tuple with one for each part of the carry. For an LSTM,
            whose carry is (h, c), the paper's best is `(0.05, 0.5)`.

    Returns:
        A cell, with the parameters and the carry of the inner cell. Called directly, it computes the evaluation form.
        In training it gets a key from its net, or from `with_key`.

    Raises:
        ValueError: if a rate is not a probability below 1, or the number of rates does not fit the carry.
        TypeError: if `cell` is not a cell or has no `output_part`, such as a stack or an attention decoder; in a step,
            if the carry is not a tuple of arrays.

    Example:
        >>> import rnnscan as rs
        >>> cell = rs.zoneout(rs.cells.LSTM(8), rate=(0.05, 0.5))

    Source: Krueger et al. 2016, "Zoneout: Regularizing RNNs by Randomly Preserving Hidden Activations", equations 4
    to 6.
    """
    check_cell("zoneout", cell)
    for each in rate if isinstance(rate, tuple) else (rate,):
        check_rate("zoneout", "rate", each)
    if not hasattr(cell, "output_part"):
        raise TypeError(
            "zoneout: the cell must have `output_part`, the index of the part of its carry that equals y, or None; got "
            f"{type(cell).__name__}. {_PLACE}"
        )
    return Zoneout(cell, rate)
