"""Log likelihoods of small loops beside compiled programs of other libraries, in float64."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import check_agreement
from benchmarks.small_steps import Use, garch, kalman_by_division
from benchmarks.small_uses import FORMS, Pair, called, seconds_in_turns


HEADINGS = ("loop", "program", "ms", "rnnscan, of it")
TREND = "local linear trend, log likelihood"
GARCH = "GARCH(1, 1), log likelihood"
_NOISE, _OBSERVATION_NOISE = (0.1, 0.01), 0.3


def local_linear_trend(steps: int) -> Use:
    """A Kalman filter of a level and its slope."""
    random = np.random.default_rng(0)
    series = np.cumsum(np.cumsum(0.1 * random.normal(size=steps))) + random.normal(size=steps)
    params = {
        "transition": jnp.asarray([[1.0, 1.0], [0.0, 1.0]]),
        "observation": jnp.asarray([[1.0, 0.0]]),
        "noise": jnp.asarray(_NOISE),
        "observation_noise": jnp.asarray([_OBSERVATION_NOISE]),
    }
    return kalman_by_division(2, steps)._replace(params=params, xs=jnp.asarray(series)[:, None])


def statsmodels_trend(use: Use) -> Callable[[], float]:
    """The compiled filter of statsmodels, without what prepares it."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    transition = np.asarray(use.params["transition"])
    model = UnobservedComponents(np.asarray(use.xs[:, 0]), "local linear trend")
    model.update([_OBSERVATION_NOISE, *_NOISE])
    # It starts with a prediction, and the cell with the estimate before it.
    model.ssm.initialize_known(np.zeros(2), transition @ transition.T + np.diag(_NOISE))
    model.ssm.loglikelihood_burn = 0
    return lambda: float(model.ssm.loglike())


def numba_trend(use: Use) -> Callable[[], float]:
    """The same filter in loops that numba compiles, for any number of states and one observation."""
    import numba

    arguments = [np.asarray(use.params[name]) for name in ("transition", "observation", "noise", "observation_noise")]
    return partial(numba.njit(_kalman_in_loops), *arguments, np.asarray(use.xs[:, 0]))


def numba_garch(use: Use) -> Callable[[], float]:
    """GARCH in a loop that numba compiles."""
    import numba

    numbers = [float(use.params[name]) for name in ("omega", "alpha", "beta")]
    return partial(numba.njit(_garch_in_a_loop), *numbers, np.asarray(use.xs))


PEERS: dict[str, tuple[Callable[[int], Use], dict[str, Callable[[Use], Callable[[], float]]]]] = {
    TREND: (local_linear_trend, {"statsmodels": statsmodels_trend, "numba": numba_trend}),
    GARCH: (garch, {"numba": numba_garch}),
}


def rows_of_peers(steps: int, rounds: int) -> Iterator[tuple[str, ...]]:
    """The rows of the table. Raises an ArithmeticError if a peer's log likelihood differs."""
    for title, (make, peers) in PEERS.items():
        with jax.enable_x64(True):
            yield from _rows(title, make(steps), peers, rounds)


def _rows(
    title: str, use: Use, peers: dict[str, Callable[[Use], Callable[[], float]]], rounds: int
) -> Iterator[tuple[str, ...]]:
    functions = {form: _log_likelihood(run, use) for form, run in FORMS.items()}
    functions |= {"rnnscan, with the gradient": jax.value_and_grad(functions["rnnscan"])}
    runs: dict[str, Callable[[], Any]] = {name: called(function, use.params) for name, function in functions.items()}
    absent = []
    for name, make in peers.items():
        try:
            runs[name] = make(use)
        except ModuleNotFoundError:
            absent.append(name)
        else:
            check_agreement(f"{title}: {name}", jnp.asarray(runs[name]()), runs["rnnscan"](), 1e-8)
    times = seconds_in_turns(runs, rounds)
    for name, seconds in times.items():
        yield title, name, f"{1e3 * median(seconds):.3f}", f"{Pair(seconds, times['rnnscan']).ratio:.2f}"
    yield from ((title, name, "not installed", "") for name in absent)


def _log_likelihood(run: Callable[[Use, Any], Any], use: Use) -> Callable[[Any], Any]:
    """The log likelihood of a cell that leaves the constant out of each step."""
    constant = -0.5 * len(use.xs) * math.log(2 * math.pi)

    def log_likelihood(params: Any) -> Any:
        return jnp.sum(run(use, params)) + constant

    return log_likelihood


def _kalman_in_loops(transition: Any, observation: Any, noise: Any, observation_noise: Any, ys: Any) -> float:
    """The filter of `kalman_by_division`, from a state of zeros and an identity."""
    states = len(noise)
    mean, covariance = np.zeros(states), np.eye(states)
    moved, product, seen = np.zeros(states), np.zeros((states, states)), np.zeros(states)
    total = 0.0
    for y in ys:
        for i in range(states):
            moved[i] = 0.0
            for j in range(states):
                moved[i] += transition[i, j] * mean[j]
                product[i, j] = 0.0
                for k in range(states):
                    product[i, j] += transition[i, k] * covariance[k, j]
        for i in range(states):
            for j in range(states):
                covariance[i, j] = noise[i] if i == j else 0.0
                for k in range(states):
                    covariance[i, j] += product[i, k] * transition[j, k]
        variance, error = observation_noise[0], y
        for i in range(states):
            seen[i] = 0.0
            for j in range(states):
                seen[i] += covariance[i, j] * observation[0, j]
            variance += observation[0, i] * seen[i]
            error -= observation[0, i] * moved[i]
        total -= 0.5 * (math.log(2 * math.pi * variance) + error * error / variance)
        for i in range(states):
            mean[i] = moved[i] + seen[i] * error / variance
            for j in range(states):
                covariance[i, j] -= seen[i] * seen[j] / variance
    return total


def _garch_in_a_loop(omega: float, alpha: float, beta: float, xs: Any) -> float:
    variance, total = 1.0, 0.0
    for x in xs:
        total -= 0.5 * (math.log(2 * math.pi * variance) + x * x / variance)
        variance = omega + alpha * x * x + beta * variance
    return total
