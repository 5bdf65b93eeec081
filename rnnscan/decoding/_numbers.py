"""Checks of numbers in the options of strategies. Traced numbers pass: their values are not known."""

from math import inf, isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import describe, is_count


def check_number(
    function: str,
    argument: str,
    value: Any,
    *,
    least: float | int = -inf,
    above: float | int = -inf,
    most: float | int = inf,
) -> None:
    """Reject all but a finite real number in an interval.

    Args:
        function: the caller's name, for the message.
        argument: the argument's name.
        value: the number, or a scalar array, traced or not.
        least: the least number.
        above: the number must be greater than this one.
        most: the greatest number.

    Raises:
        TypeError: if it is not a real number.
        ValueError: if it lies outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.generic | np.ndarray | jax.Array):
        raise TypeError(f"{function}: `{argument}` must be a number; got {describe(value)}.")
    dtype = jnp.result_type(value)
    if np.shape(value) or not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise TypeError(f"{function}: `{argument}` must be one real number; got {describe(value)}.")
    if isinstance(value, jax.core.Tracer):
        return
    number = float(value)
    if not (isfinite(number) and least <= number <= most and number > above):
        bounds = [
            words
            for words, bound in (("at least", least), ("above", above), ("at most", most))
            if isfinite(bound)
            for words in (f"{words} {bound:g}",)
        ]
        raise ValueError(f"{function}: `{argument}` must be finite and {' and '.join(bounds)}; got {value!r}.")


def check_count(function: str, argument: str, value: Any, *, optional: bool = False) -> None:
    """Reject all but an integer of at least 1.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below 1.
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        hint = " It determines shapes, so it cannot be traced." if isinstance(value, jax.Array) else ""
        raise TypeError(f"{function}: `{argument}` must be an integer; got {describe(value)}.{hint}")
    if not is_count(value):
        raise ValueError(f"{function}: `{argument}` must be at least 1; got {value}.")
