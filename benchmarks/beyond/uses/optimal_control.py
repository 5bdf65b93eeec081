"""Recursions that run backwards in time.

"riccati": the value of a linear-quadratic regulator, P' = Q + A^T P A - A^T P B (R + B^T P B)^-1 B^T P A.
"returns": generalized advantages, a = r + g v_next (1 - done) - v + g l (1 - done) a_next, elementwise linear.

Sources: Kalman 1960, "Contributions to the Theory of Optimal Control"; Schulman et al. 2016, "High-Dimensional
Continuous Control Using Generalized Advantage Estimation", equation 16.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def riccati_cell(params: Any, value: Array, _: None) -> tuple[Array, Array]:
    """Carry: P (D, D). Output: the gain (U, D)."""
    move, push = params["move"], params["push"]
    effort = push.T @ value @ push + params["effort"] @ params["effort"].T + jnp.eye(push.shape[1])
    gain = jnp.linalg.solve(effort, push.T @ value @ move)
    value = params["cost"] @ params["cost"].T + move.T @ value @ (move - push @ gain)
    return value, gain


def returns_cell(params: Any, advantage: Array, x: Any) -> tuple[Array, Array]:
    """Carry: the advantage of the next step (N). Input: reward, value, the next value, and whether it ended (N)."""
    reward, value, next_value, done = x
    discount, trace = jax.nn.sigmoid(params)
    goes_on = jnp.where(done, 0, discount)
    advantage = reward + goes_on * next_value - value + goes_on * trace * advantage
    return advantage, advantage


def _make_riccati(draw: Draw, *, steps: int, state: int, inputs: int) -> Problem:
    params = {"move": draw.kernel(state, state), "push": draw.kernel(state, inputs)}
    params |= {"cost": draw.kernel(state, state), "effort": draw.kernel(inputs, inputs)}
    root = draw.kernel(state, state)
    return Problem(one_scan(riccati_cell, length=steps, reverse=True), params, root @ root.T, None)


def _make_returns(draw: Draw, *, steps: int, rows: int) -> Problem:
    xs = *(draw(steps, rows) for _ in range(3)), draw.integers(steps, rows, below=20) == 0
    return Problem(one_scan(returns_cell, reverse=True), draw(2) + 3, draw(rows), xs)


USES = {
    "riccati": Use(
        "Riccati recursion",
        _make_riccati,
        {"steps": 100, "state": 32, "inputs": 8},
        {"steps": 4, "state": 3, "inputs": 2},
        1e-3,
    ),
    "returns": Use("generalized advantages", _make_returns, {"steps": 4000, "rows": 64}, {"steps": 6, "rows": 2}),
}
