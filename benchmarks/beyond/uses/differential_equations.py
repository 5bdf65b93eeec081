"""Solvers of differential equations whose right-hand side is a network.

"neural-ode": z' = f(z, t), a classical Runge-Kutta step of fourth order. "neural-cde": dz = f(z) dX, where f(z) is a
matrix and X a path through the data. "neural-sde": dz = f(z) dt + g(z) dW by Euler and Maruyama, W given as noise.

Sources: Chen et al. 2018, "Neural Ordinary Differential Equations"; Kidger et al. 2020, "Neural Controlled Differential
Equations", equation 4; Kidger et al. 2021, "Neural SDEs as Infinite-Dimensional GANs".
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


STEP = 0.05


def ode_cell(params: Any, state: Array, time: Array) -> tuple[Array, Array]:
    """Carry: z (N, D). Input: the time."""

    def slope(state: Array, time: Array) -> Array:
        return _network(params, jnp.concatenate([state, jnp.full_like(state[:, :1], time)], -1))

    first = slope(state, time)
    second = slope(state + STEP / 2 * first, time + STEP / 2)
    third = slope(state + STEP / 2 * second, time + STEP / 2)
    fourth = slope(state + STEP * third, time + STEP)
    state = state + STEP / 6 * (first + 2 * second + 2 * third + fourth)
    return state, state


def cde_cell(params: Any, state: Array, change: Array) -> tuple[Array, Array]:
    """Carry: z (N, D). Input: the change of the path (N, C)."""
    matrix = jnp.tanh(_network(params, state)).reshape(*state.shape, change.shape[-1])
    state = state + jnp.einsum("ndc,nc->nd", matrix, change)
    return state, state


def sde_cell(params: Any, state: Array, noise: Array) -> tuple[Array, Array]:
    """Carry: z (N, D). Input: normal noise (N, D)."""
    drift, spread = _network(params["drift"], state), jax.nn.sigmoid(_network(params["spread"], state))
    state = state + STEP * drift + STEP**0.5 * spread * noise
    return state, state


def _network(params: Any, inputs: Array) -> Array:
    hidden = jnp.tanh(inputs @ params["kernel_in"] + params["bias_in"])
    return hidden @ params["kernel_out"] + params["bias_out"]


def _weights(draw: Draw, inputs: int, hidden: int, outputs: int) -> Any:
    return {
        "kernel_in": draw.kernel(inputs, hidden),
        "bias_in": draw(hidden),
        "kernel_out": draw.kernel(hidden, outputs),
        "bias_out": draw(outputs),
    }


def _make_ode(draw: Draw, *, steps: int, rows: int, state: int, hidden: int) -> Problem:
    times = STEP * jnp.arange(steps, dtype=float)
    return Problem(one_scan(ode_cell), _weights(draw, state + 1, hidden, state), draw(rows, state), times)


def _make_cde(draw: Draw, *, steps: int, rows: int, state: int, hidden: int, channels: int) -> Problem:
    weights = _weights(draw, state, hidden, state * channels)
    return Problem(one_scan(cde_cell), weights, draw(rows, state), draw(steps, rows, channels, scale=0.1))


def _make_sde(draw: Draw, *, steps: int, rows: int, state: int, hidden: int) -> Problem:
    params = {"drift": _weights(draw, state, hidden, state), "spread": _weights(draw, state, hidden, state)}
    return Problem(one_scan(sde_cell), params, draw(rows, state), draw(steps, rows, state))


SIZES = {"steps": 100, "rows": 32, "state": 16, "hidden": 64}
TINY = {"steps": 5, "rows": 2, "state": 3, "hidden": 4}

USES = {
    "neural-ode": Use("neural ODE, Runge-Kutta 4", _make_ode, SIZES, TINY),
    "neural-cde": Use("neural CDE", _make_cde, SIZES | {"channels": 8}, TINY | {"channels": 2}),
    "neural-sde": Use("neural SDE, Euler-Maruyama", _make_sde, SIZES, TINY),
}
