"""The likelihood of GARCH(1, 1) by `rs.scan`, and its gradient, beside those of arch, in float64."""

import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from benchmarks.papers.result import Figure, absent, installed, likelihood_figure, named


TASK, PACKAGE = "GARCH(1, 1), no mean, 1,000 steps", "arch"
TRUE = np.array([0.1, 0.15, 0.8])  # omega, alpha and beta of the series


def figures() -> Iterator[Figure]:
    """The log likelihood where arch has its maximum, and the gradient where the series comes from."""
    with jax.enable_x64(True):
        params = _fitted_by_arch() if installed(PACKAGE) else TRUE
        yield likelihood_figure(f"{TASK}, fitted", lambda: float(_garch(params)), PACKAGE, lambda: _of_arch(params))
        yield _gradient()


def _series() -> np.ndarray:
    random, (omega, alpha, beta) = np.random.default_rng(0), TRUE
    variance, ys = omega / (1 - alpha - beta), []
    for shock in random.normal(size=1000):
        ys.append(np.sqrt(variance) * shock)
        variance = omega + alpha * ys[-1] ** 2 + beta * variance
    return np.array(ys)


def _before(ys: np.ndarray) -> float:
    """The variance before the first step, as arch has it: the first 75 squares, with weights that fall by 0.94."""
    weights = 0.94 ** np.arange(min(75, len(ys)))
    return float(weights @ ys[: len(weights)] ** 2 / weights.sum())


def _garch(params: jax.typing.ArrayLike) -> jax.Array:
    """v' = omega + alpha y^2 + beta v, and the densities of N(y; 0, v)."""

    def step(params: jax.Array, variance: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        omega, alpha, beta = params
        log_density = -0.5 * (jnp.log(2 * jnp.pi * variance) + y**2 / variance)
        return omega + alpha * y**2 + beta * variance, log_density

    params, ys = jnp.asarray(params), _series()
    first = params[0] + (params[1] + params[2]) * _before(ys)
    _, log_densities = rs.scan(step, params, first, jnp.asarray(ys))
    return log_densities.sum()


@cache
def _arch_model() -> Any:
    from arch import arch_model

    return arch_model(_series(), mean="Zero", vol="GARCH", p=1, q=1, rescale=False)


def _fitted_by_arch() -> np.ndarray:
    return np.asarray(_arch_model().fit(disp="off").params)


def _of_arch(params: np.ndarray) -> float:
    return float(_arch_model().fix(params).loglikelihood)


def _gradient() -> Figure:
    """Met if each entry is within 1e-6 of central differences of arch's likelihood, relative to it."""
    started = time.perf_counter()
    gradient = np.asarray(jax.grad(_garch)(TRUE))
    seconds = time.perf_counter() - started
    what = "gradient by omega, alpha, beta"
    ours = _shown(gradient)
    if not installed(PACKAGE):
        return Figure(TASK, what, absent(PACKAGE), ours, None, seconds, PACKAGE)
    expected = np.array([_slope(step) for step in np.diag(1e-5 * TRUE)])
    met = bool(np.all(np.abs(gradient - expected) <= 1e-6 * np.abs(expected)))
    return Figure(TASK, what, _shown(expected), ours, met, seconds, f"differences of {named(PACKAGE)}")


def _slope(step: np.ndarray) -> float:
    return (_of_arch(TRUE + step) - _of_arch(TRUE - step)) / (2 * step.sum())


def _shown(gradient: np.ndarray) -> str:
    return ", ".join(f"{each:.4f}" for each in gradient)
