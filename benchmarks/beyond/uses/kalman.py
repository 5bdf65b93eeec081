"""The Kalman filter and smoother.

    m-, P- = A m, A P A^T + Q            predict
    S = C P- C^T + R,  K = P- C^T S^-1   gain
    m, P = m- + K (y - C m-), (I - K C) P-

with the log-likelihood of y under N(C m-, S). The smoother runs back over the filtered m and P,

    G = P A^T (P-)^-1,  m^s = m + G (m^s' - m-),  P^s = P + G (P^s' - P-) G^T

Sources: Kalman 1960, "A New Approach to Linear Filtering and Prediction Problems"; Rauch, Tung and Striebel 1965.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Scan, Use, one_scan


def filter_cell(params: Any, carry: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Any]:
    """Carry: mean (N, D) and covariance (N, D, D). Output: the log-likelihood, and the filtered mean and covariance."""
    mean, covariance = _predict(params, *carry)
    observe = params["observe"]
    innovation = y - mean @ observe.T
    cross = covariance @ observe.T
    spread = observe @ cross + _square(params["noise"])
    gain = jnp.swapaxes(jnp.linalg.solve(spread, jnp.swapaxes(cross, 1, 2)), 1, 2)
    mean = mean + jnp.einsum("ndm,nm->nd", gain, innovation)
    covariance = covariance - gain @ jnp.swapaxes(cross, 1, 2)
    whitened = jnp.linalg.solve(spread, innovation[..., None])[..., 0]
    likelihood = -0.5 * (jnp.sum(innovation * whitened, -1) + jnp.linalg.slogdet(spread)[1])
    return (mean, covariance), (likelihood, mean, covariance)


def smoother_cell(params: Any, carry: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[Any, Any]:
    """Carry: the smoothed mean and covariance of the next step. Input: the filtered ones of this step."""
    mean, covariance = x
    predicted_mean, predicted = _predict(params, mean, covariance)
    gain = jnp.swapaxes(jnp.linalg.solve(predicted, params["move"] @ covariance), 1, 2)
    mean = mean + jnp.einsum("nde,ne->nd", gain, carry[0] - predicted_mean)
    covariance = covariance + gain @ (carry[1] - predicted) @ jnp.swapaxes(gain, 1, 2)
    return (mean, covariance), (mean, covariance)


def _predict(params: Any, mean: Array, covariance: Array) -> tuple[Array, Array]:
    move = params["move"]
    return mean @ move.T, move @ covariance @ move.T + _square(params["drift"])


def _square(factor: Array) -> Array:
    return factor @ factor.T + 0.1 * jnp.eye(len(factor))


def _smooth(scan: Scan, params: Any, carry: Any, ys: Array) -> Any:
    last, (likelihood, *filtered) = scan(filter_cell, params, carry, ys)
    return likelihood, scan(smoother_cell, params, last, tuple(filtered), reverse=True)


def _make(draw: Draw, *, steps: int, rows: int, state: int, observed: int, smooth: bool = False) -> Problem:
    params = {
        "move": 0.9 * draw.kernel(state, state),
        "observe": draw.kernel(observed, state),
        "drift": draw(state, state, scale=0.3),
        "noise": draw(observed, observed, scale=0.3),
    }
    root = draw(rows, state, state, scale=0.5)
    carry = draw(rows, state), root @ jnp.swapaxes(root, 1, 2) + jnp.eye(state)
    return Problem(_smooth if smooth else one_scan(filter_cell), params, carry, draw(steps, rows, observed))


SIZES = {"steps": 100, "rows": 8, "state": 8, "observed": 4}
TINY = {"steps": 5, "rows": 2, "state": 3, "observed": 2}

USES = {
    "kalman-filter": Use("Kalman filter", _make, SIZES, TINY),
    "kalman-smoother": Use("Kalman smoother", _make, SIZES | {"smooth": True}, TINY | {"smooth": True}, 1e-3),
}
