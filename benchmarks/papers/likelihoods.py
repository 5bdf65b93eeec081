"""Likelihoods of state spaces by `rs.scan`, beside those of statsmodels and dynamax, in float64."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from benchmarks.papers.result import Figure, likelihood_figure


KALMAN = "Kalman filter, a local level over 500 steps"
MARKOV = "hidden Markov model of two regimes over 500 steps"


def figures() -> Iterator[Figure]:
    """The log likelihoods, whose relative difference must be at most 1e-9."""
    with jax.enable_x64(True):
        yield likelihood_figure(KALMAN, _kalman, "statsmodels", _kalman_of_statsmodels)
        yield likelihood_figure(KALMAN, _kalman, "dynamax", _kalman_of_dynamax)
        yield likelihood_figure(MARKOV, _markov, "statsmodels", _markov_of_statsmodels)
        yield likelihood_figure(MARKOV, _markov, "dynamax", _markov_of_dynamax)


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


def _kalman_of_dynamax() -> float:
    from dynamax.linear_gaussian_ssm import inference

    def matrix(value: float) -> jax.Array:
        return jnp.full((1, 1), value)

    nothing, no_inputs = jnp.zeros(1), jnp.zeros((1, 0))
    params = inference.ParamsLGSSM(
        initial=inference.ParamsLGSSMInitial(mean=nothing, cov=matrix(START)),
        dynamics=inference.ParamsLGSSMDynamics(
            weights=matrix(1.0), bias=nothing, input_weights=no_inputs, cov=matrix(DRIFT)
        ),
        emissions=inference.ParamsLGSSMEmissions(
            weights=matrix(1.0), bias=nothing, input_weights=no_inputs, cov=matrix(NOISE)
        ),
    )
    return float(inference.lgssm_filter(params, jnp.asarray(_series())[:, None]).marginal_loglik)


def _markov() -> float:
    """log p' = log sum_j p(i | j) p_j + log N(y; m_i, v), normalized at each step."""

    def forward_step(params: None, log_probability: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_density = -0.5 * (jnp.log(2 * jnp.pi * VARIANCE) + (y - MEANS) ** 2 / VARIANCE)
        joint = jax.nn.logsumexp(jnp.log(SWITCH) + log_probability, axis=1) + log_density
        evidence = jax.nn.logsumexp(joint)
        return joint - evidence, evidence

    _, evidence = rs.scan(forward_step, None, jnp.log(_stationary()), jnp.asarray(_series()))
    return float(evidence.sum())


def _stationary() -> np.ndarray:
    """The distribution of the chain before the first transition, and after it."""
    return np.array([SWITCH[0, 1], SWITCH[1, 0]]) / (SWITCH[0, 1] + SWITCH[1, 0])


def _markov_of_statsmodels() -> float:
    from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

    model = MarkovRegression(_series(), k_regimes=2)
    return float(model.loglike([SWITCH[0, 0], SWITCH[0, 1], *MEANS, VARIANCE]))


def _markov_of_dynamax() -> float:
    from dynamax.hidden_markov_model import hmm_filter

    log_densities = -0.5 * (np.log(2 * np.pi * VARIANCE) + (_series()[:, None] - MEANS) ** 2 / VARIANCE)
    filtered = hmm_filter(jnp.asarray(_stationary()), jnp.asarray(SWITCH.T), jnp.asarray(log_densities))
    return float(filtered.marginal_loglik)
