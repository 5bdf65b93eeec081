"""Zoneout: units that keep their state of the step before, at random."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._messages import describe
from rnnscan.compose.random import RandomStep, with_key
from rnnscan.compose.wrapper import Wrapper, check_rate
from rnnscan.protocols import ComposableCell, check_cell


_PLACE = (
    "Put zoneout directly around the cell that has the state, and stacks, residuals and attention around zoneout: "
    "attention reads the state of its cell as the query, so the choice comes before it."
)


@dataclass(frozen=True)
class Zoneout(Wrapper):
    """A cell whose units keep their state at random. Made by `zoneout`."""

    rate: float | tuple[float, ...]

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step of the expectation: `(params, carry, x) -> (carry, y)`."""
        self._check(carry)
        new_carry, y = self.cell(params, carry, x)
        expected = tuple(
            (rate * old + (1 - rate) * new).astype(new.dtype)
            for rate, old, new in zip(self._rates(carry), carry, new_carry, strict=True)
        )
        return expected, self._output(expected, y)

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """The step that keeps each unit's state of the step before with probability `rate`."""
        own_key, inner_key = jax.random.split(key)
        inner = with_key(self.cell, inner_key, params, x)

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            self._check(carry)
            new_carry, y = inner(params, carry, scanned)
            keys = jax.random.split(jax.random.fold_in(own_key, scanned[1]), len(carry))
            zoned = tuple(
                jnp.where(jax.random.bernoulli(part_key, rate, new.shape), old, new)
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


def zoneout(cell: ComposableCell, rate: float | tuple[float, ...]) -> Zoneout:
    """Let units keep their state of the step before, at random.

        s'[k] = s[k] with probability rate, otherwise what the cell computes          in training
        s' = rate * s + (1 - rate) * (what the cell computes)                           in evaluation

    The choice is independent over steps, rows, units and parts of the carry. Where y is a part of the carry, as the h
    of an LSTM, it is the part after that choice.

    Args:
        cell: a cell of `rnnscan.cells`, or one of your own whose carry is a tuple of arrays and which says by its
            attribute `output_part` which of them y is, None for none.
        rate: the probability, at least 0 and below 1; or one for each part of the carry, in its order: the paper's
            best for an LSTM is `(0.05, 0.5)`, for (h, c).

    Returns:
        A cell, with the parameters and the carry of the inner one. It evaluates as it is; in training it gets a key
        from the net it is in, or from `with_key`.

    Raises:
        ValueError: if the rate is no probability below 1, or there is not one for each part of the carry.
        TypeError: if it is no cell, or does not say its `output_part`, such as a stack or an attention decoder; in a
            step, if the carry is no tuple of arrays.

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
            f"zoneout: a cell must say which part of its carry its output is, or None, by `output_part`; got "
            f"{type(cell).__name__}. {_PLACE}"
        )
    return Zoneout(cell, rate)
