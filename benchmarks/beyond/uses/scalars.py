"""Carries of a few numbers, over many steps.

"scalar-tanh": c' = tanh(a c + x). "scalar-linear": c' = a c + x. "garch": the variance of a return r,

    v' = w + a r^2 + b v,  log p(r) = -(log v + r^2 / v) / 2

"averages": exponential moving averages of the same input at several rates, with Adam's correction of the start.

Sources: Bollerslev 1986, "Generalized Autoregressive Conditional Heteroskedasticity"; Kingma and Ba 2015, "Adam",
section 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def tanh_cell(params: Any, carry: Array, x: Array) -> tuple[Array, Array]:
    """Carry: a scalar."""
    carry = jnp.tanh(params * carry + x)
    return carry, carry


def linear_cell(params: Any, carry: Array, x: Array) -> tuple[Array, Array]:
    """Carry: a scalar."""
    carry = params * carry + x
    return carry, carry


def garch_cell(params: Any, variance: Array, x: Array) -> tuple[Array, Array]:
    """Carry: the variance of this step's return, a scalar."""
    likelihood = -0.5 * (jnp.log(variance) + x**2 / variance)
    base, shock, persistence = jnp.exp(params["base"]), *jax.nn.sigmoid(params["rates"])
    return base + shock * x**2 + persistence * variance, likelihood


def averages_cell(params: Any, carry: tuple[Array, Array], x: Array) -> tuple[Any, Array]:
    """Carry: the averages (N, K, D), and for each rate the power of it so far (K)."""
    rate = jax.nn.sigmoid(params)
    averages = rate[:, None] * carry[0] + (1 - rate)[:, None] * x[:, None]
    power = rate * carry[1]
    return (averages, power), averages / (1 - power)[:, None]


def _make(cell: Any) -> Any:
    def make(draw: Draw, *, steps: int) -> Problem:
        return Problem(one_scan(cell), draw.uniform(low=0.5, high=0.9), draw(), draw(steps))

    return make


def _make_garch(draw: Draw, *, steps: int) -> Problem:
    params = {"base": draw(), "rates": jnp.asarray([-2.0, 1.0], float) + draw(2, scale=0.1)}
    return Problem(one_scan(garch_cell), params, draw.uniform(low=0.5), draw(steps))


def _make_averages(draw: Draw, *, steps: int, rows: int, rates: int, features: int) -> Problem:
    carry = draw(rows, rates, features), draw.uniform(rates, low=0.5, high=0.9)
    return Problem(one_scan(averages_cell), draw(rates), carry, draw(steps, rows, features))


USES = {
    "scalar-tanh": Use("scalar carry, tanh", _make(tanh_cell), {"steps": 100_000}, {"steps": 9}),
    "scalar-linear": Use("scalar carry, linear", _make(linear_cell), {"steps": 100_000}, {"steps": 9}),
    "garch": Use("GARCH, scalar", _make_garch, {"steps": 20_000}, {"steps": 9}),
    "averages": Use(
        "exponential moving averages",
        _make_averages,
        {"steps": 1000, "rows": 8, "rates": 4, "features": 32},
        {"steps": 6, "rows": 2, "rates": 3, "features": 2},
    ),
}
