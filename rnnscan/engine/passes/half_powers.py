"""Powers with a half in the exponent, by square roots."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.ir.program import Atom, Equation, Program, concrete
from rnnscan.ir.rewrite import replace_equations
from rnnscan.ir.trace import in_place_of


# In float32 and float64 x^n leaves the range only where x^(n + 1/2) does too. In 16 bits roots would round once more.
_DTYPES = ("float32", "float64")
_LARGEST = 4


def half_powers(program: Program) -> Program:
    """Compute `x^(n + 1/2)` as `sqrt(x) x^n`, and `x^-(n + 1/2)` as `rsqrt(x) / x^n`, for n of 0 to 4.

    The inverse cube of a distance is `(d^2)^-1.5`. A CPU takes five times as long for a power as for a root, and the
    derivative has one more: an N-body simulation trained in 1.23 to 1.40 of the time of plain autodiff, which keeps
    both (issue 18).
    """
    return replace_equations(program, partial(_by_roots, maker=program.maker))


def _by_roots(equation: Equation, maker: dict[Atom, Equation]) -> Sequence[Equation] | None:
    if equation.name != "pow" or equation.inputs[0].dtype not in _DTYPES:
        return None
    exponent = _number(equation.inputs[1], maker)
    if exponent is None or exponent % 1 != 0.5 or abs(exponent) > _LARGEST + 0.5:
        return None
    return in_place_of(equation, partial(_power, exponent), equation.inputs[:1])


def _power(exponent: float, x: Any) -> Any:
    """The power of one exponent, with the derivatives of a power.

    Those of the roots are infinity times zero at 0 and at infinity.
    """

    def power(x: Any) -> Any:
        whole = int(abs(exponent))
        # A power of -0 or -inf is that of 0 or inf.
        is_end = lax.bitwise_or(lax.eq(x, lax.full_like(x, 0)), lax.eq(x, lax.full_like(x, -np.inf)))
        x = lax.select(is_end, lax.abs(x), x)
        if exponent < 0:
            return lax.div(lax.rsqrt(x), lax.integer_pow(x, whole)) if whole else lax.rsqrt(x)
        return lax.mul(lax.sqrt(x), lax.integer_pow(x, whole)) if whole else lax.sqrt(x)

    return differentiate_as(lambda x: lax.pow(x, lax.full_like(x, exponent)), power, keeps_values=True)(x)


def _number(exponent: Atom, maker: dict[Atom, Equation]) -> float | None:
    """An exponent that is a number: a constant y, or the `y - 1` of a derivative."""
    number = concrete(exponent)
    if number is not None:
        return float(number) if np.ndim(number) == 0 else None
    producer = maker.get(exponent)
    if producer is None or producer.name != "sub":
        return None
    first, second = (_number(term, {}) for term in producer.inputs)
    return None if first is None or second is None else first - second
