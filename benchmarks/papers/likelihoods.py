"""Likelihoods of state spaces by `rs.scan`, beside those of statsmodels, in float64."""

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from benchmarks.papers.result import Figure


def figures() -> Iterator[Figure]:
    """The log likelihoods, whose relative difference must be at most 1e-9."""
    with jax.enable_x64(True):
        yield _figure("Kalman filter, a local level over 500 steps", _kalman, _kalman_of_statsmodels)
        yield _figure("hidden Markov model of two regimes over 500 steps", _markov, _markov_of_statsmodels)


def _figure(task: str, ours: Callable[[], float], theirs: Callable[[], float]) -> Figure:
    started = time.perf_counter()
    value = ours()
    seconds = time.perf_counter() - started
    reference = theirs()
    met = abs(value - reference) <= 1e-9 * abs(reference)
    return Figure(task, "log likelihood", f"{reference:.9f}", f"{value:.9f}", met, seconds, "statsmodels")


NOISE, DRIFT, START = 0.8, 0.3, 1e6
SWITCH = np.array([[0.95, 0.1], [0.05, 0.9]])  # from the column to the row
MEANS, VARIANCE = np.array([-0.5, 1.0]), 0.4


def _series() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.normal(size=500).cumsum() * 0.5 + random.normal(size=500)


def _kalman() -> float:
    """m' = m + K e, P' = (1 - K) (P + q), with e = y - m and K = (P + q) / (P + q + r)."""

    def filter_step(
        params: None, carry: tuple[jax.Array, jax.Array], y: jax.Array
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        mean, variance = carry
        of_innovation = variance + NOISE
        innovation = y - mean
        gain = variance / of_innovation
        log_density = -0.5 * (jnp.log(2 * jnp.pi * of_innovation) + innovation**2 / of_innovation)
        return (mean + gain * innovation, (1 - gain) * variance + DRIFT), log_density

    start = jnp.asarray(0.0), jnp.asarray(START)
    _, log_densities = rs.scan(filter_step, None, start, jnp.asarray(_series()))
    return float(log_densities.sum())


def _kalman_of_statsmodels() -> float:
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    model = UnobservedComponents(_series(), "local level")
    model.ssm.initialize_known(np.zeros(1), np.full((1, 1), START))
    model.ssm.loglikelihood_burn = 0
    return float(model.loglike([NOISE, DRIFT]))


def _markov() -> float:
    """log p' = log sum_j p(i | j) p_j + log N(y; m_i, v), normalized at each step."""

    def forward_step(params: None, log_probability: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_density = -0.5 * (jnp.log(2 * jnp.pi * VARIANCE) + (y - MEANS) ** 2 / VARIANCE)
        joint = jax.nn.logsumexp(jnp.log(SWITCH) + log_probability, axis=1) + log_density
        evidence = jax.nn.logsumexp(joint)
        return joint - evidence, evidence

    # The chain begins in its stationary distribution, before the first transition.
    stationary = np.array([SWITCH[0, 1], SWITCH[1, 0]]) / (SWITCH[0, 1] + SWITCH[1, 0])
    _, evidence = rs.scan(forward_step, None, jnp.log(stationary), jnp.asarray(_series()))
    return float(evidence.sum())


def _markov_of_statsmodels() -> float:
    from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

    model = MarkovRegression(_series(), k_regimes=2)
    return float(model.loglike([SWITCH[0, 0], SWITCH[0, 1], *MEANS, VARIANCE]))
