"""Small steps that people run over long sequences on a CPU, each with parameters, a carry and inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax import Array

import rnnscan as rs


class Use(NamedTuple):
    """A step with its arguments, and a number of each step: a log likelihood, or an output."""

    cell: Callable[[Any, Any, Any], tuple[Any, Any]]
    params: Any
    carry: Any
    xs: Any


def _linear_model(states: int, observed: int, steps: int) -> tuple[Any, Any]:
    """A linear Gaussian model, and observations."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "transition": 0.8 * jnp.eye(states) + 0.1 / states,
        "observation": jax.random.normal(keys[0], (observed, states)),
        "noise": jnp.full(states, 0.1),
        "observation_noise": jnp.full(observed, 0.3),
    }
    return params, jax.random.normal(keys[1], (steps, observed))


def kalman(states: int, observed: int, steps: int) -> Use:
    """A Kalman filter, by a Cholesky factor of the innovation's covariance."""
    params, ys = _linear_model(states, observed, steps)

    def cell(params: Any, carry: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
        (mean, covariance), transition, observation = carry, params["transition"], params["observation"]
        mean = transition @ mean
        covariance = transition @ covariance @ transition.T + jnp.diag(params["noise"])
        innovation = observation @ covariance @ observation.T + jnp.diag(params["observation_noise"])
        factor, error = jnp.linalg.cholesky(innovation), y - observation @ mean
        gain = jax.scipy.linalg.cho_solve((factor, True), observation @ covariance).T
        whitened = jax.scipy.linalg.cho_solve((factor, True), error)
        log_likelihood = -0.5 * error @ whitened - jnp.log(jnp.diag(factor)).sum()
        return (mean + gain @ error, covariance - gain @ observation @ covariance), log_likelihood

    return Use(cell, params, (jnp.zeros(states), jnp.eye(states)), ys)


def kalman_by_division(states: int, steps: int) -> Use:
    """A Kalman filter of one observation, whose innovation's variance is a number."""
    params, ys = _linear_model(states, 1, steps)

    def cell(params: Any, carry: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
        (mean, covariance), transition, observation = carry, params["transition"], params["observation"][0]
        mean = transition @ mean
        covariance = transition @ covariance @ transition.T + jnp.diag(params["noise"])
        seen = covariance @ observation
        variance, error = observation @ seen + params["observation_noise"][0], y[0] - observation @ mean
        log_likelihood = -0.5 * (error**2 / variance + jnp.log(variance))
        return (mean + seen * error / variance, covariance - jnp.outer(seen, seen) / variance), log_likelihood

    return Use(cell, params, (jnp.zeros(states), jnp.eye(states)), ys)


def square_root_kalman(states: int, observed: int, steps: int) -> Use:
    """A Kalman filter that carries a factor of the covariance, by QR factors."""
    params, ys = _linear_model(states, observed, steps)

    def lower(matrix: Array) -> Array:
        return jnp.linalg.qr(matrix.T, mode="r").T

    def cell(params: Any, carry: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
        (mean, factor), transition, observation = carry, params["transition"], params["observation"]
        mean = transition @ mean
        factor = lower(jnp.concatenate([transition @ factor, jnp.diag(jnp.sqrt(params["noise"]))], 1))
        seen = jnp.concatenate([jnp.diag(jnp.sqrt(params["observation_noise"])), observation @ factor], 1)
        unseen = jnp.concatenate([jnp.zeros((states, observed)), factor], 1)
        joint = lower(jnp.concatenate([seen, unseen], 0))
        innovation, gain = joint[:observed, :observed], joint[observed:, :observed]
        error = jax.scipy.linalg.solve_triangular(innovation, y - observation @ mean, lower=True)
        log_likelihood = -0.5 * error @ error - jnp.log(jnp.abs(jnp.diag(innovation))).sum()
        return (mean + gain @ error, joint[observed:, observed:]), log_likelihood

    return Use(cell, params, (jnp.zeros(states), jnp.eye(states)), ys)


def extended_kalman(steps: int) -> Use:
    """An extended Kalman filter of three states, linearized at each step."""
    params = {"weights": 0.3 * jax.random.normal(jax.random.key(0), (3, 3)), "noise": jnp.full(3, 0.1)}
    ys = 1.5 + 0.1 * jax.random.normal(jax.random.key(1), (steps, 2))

    def moved(params: Any, state: Array) -> Array:
        return 0.95 * state + 0.1 * jnp.tanh(params["weights"] @ state)

    def seen(state: Array) -> Array:
        return jnp.stack([jnp.sqrt(state[0] ** 2 + state[1] ** 2 + 1), state[2]])

    def cell(params: Any, carry: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
        mean, covariance = carry
        transition = jax.jacfwd(moved, 1)(params, mean)
        mean, covariance = moved(params, mean), transition @ covariance @ transition.T + jnp.diag(params["noise"])
        observation = jax.jacfwd(seen)(mean)
        factor = jnp.linalg.cholesky(observation @ covariance @ observation.T + 0.3 * jnp.eye(2))
        gain = jax.scipy.linalg.cho_solve((factor, True), observation @ covariance).T
        error = y - seen(mean)
        whitened = jax.scipy.linalg.solve_triangular(factor, error, lower=True)
        log_likelihood = -0.5 * whitened @ whitened - jnp.log(jnp.diag(factor)).sum()
        return (mean + gain @ error, covariance - gain @ observation @ covariance), log_likelihood

    return Use(cell, params, (jnp.full(3, 0.5), jnp.eye(3)), ys)


def hidden_markov(states: int, steps: int) -> Use:
    """The log likelihood of a hidden Markov model with Gaussian outputs."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"transition": jax.random.normal(keys[0], (states, states)), "mean": jax.random.normal(keys[1], (states,))}

    def cell(params: Any, log_alpha: Array, y: Array) -> tuple[Array, Array]:
        log_transition = jax.nn.log_softmax(params["transition"], 1)
        log_alpha = jax.nn.logsumexp(log_alpha[:, None] + log_transition, 0) - 0.5 * (y - params["mean"]) ** 2
        total = jax.nn.logsumexp(log_alpha)
        return log_alpha - total, total

    return Use(cell, params, jnp.full(states, -jnp.log(states)), jax.random.normal(keys[2], (steps,)))


def garch(steps: int) -> Use:
    """GARCH(1, 1)."""
    params = {"omega": jnp.asarray(0.1), "alpha": jnp.asarray(0.2), "beta": jnp.asarray(0.7)}

    def cell(params: Any, variance: Array, x: Array) -> tuple[Array, Array]:
        log_likelihood = -0.5 * (jnp.log(variance) + x**2 / variance)
        return params["omega"] + params["alpha"] * x**2 + params["beta"] * variance, log_likelihood

    return Use(cell, params, jnp.asarray(1.0), jax.random.normal(jax.random.key(0), (steps,)))


def epidemic(steps: int) -> Use:
    """An SIR epidemic, by the method of Runge and Kutta."""
    params, size = {"infection": jnp.asarray(0.3), "recovery": jnp.asarray(0.1)}, 0.1

    def slope(params: Any, state: Array) -> Array:
        infected, recovered = params["infection"] * state[0] * state[1], params["recovery"] * state[1]
        return jnp.stack([-infected, infected - recovered, recovered])

    def cell(params: Any, state: Array, x: Array) -> tuple[Array, Array]:
        first = slope(params, state)
        second = slope(params, state + size / 2 * first)
        third = slope(params, state + size / 2 * second)
        fourth = slope(params, state + size * third)
        state = state + size / 6 * (first + 2 * second + 2 * third + fourth)
        return state, (state[1] - x) ** 2

    return Use(cell, params, jnp.asarray([0.9, 0.1, 0.0]), jax.random.normal(jax.random.key(0), (steps,)))


def scalars(leaves: int, steps: int) -> Use:
    """A ring of numbers, each a leaf of its own."""
    params = [jnp.asarray(0.5 + 0.01 * index) for index in range(leaves)]

    def cell(params: Any, carry: list[Array], x: Array) -> tuple[list[Array], Array]:
        carry = [jnp.tanh(p * c + 0.1 * carry[i - 1] + x) for i, (p, c) in enumerate(zip(params, carry, strict=True))]
        return carry, sum(carry, jnp.zeros(()))

    carry = [jnp.asarray(0.1 * index) for index in range(leaves)]
    return Use(cell, params, carry, jax.random.normal(jax.random.key(0), (steps,)))


def of_cell(cell: Any, steps: int) -> Use:
    """A cell of the library, for one row."""
    params, xs = cell.init(jax.random.key(0), input_size=4), jax.random.normal(jax.random.key(1), (steps, 4))
    return Use(cell, params, cell.initial_carry(xs[0]), xs)


def in_rows(use: Use, rows: int) -> Use:
    """The same for several series: the step of one, mapped by `jax.vmap`."""
    cell = jax.vmap(use.cell, (None, 0, 0))
    carry, xs = jax.tree.map(lambda leaf: jnp.stack([leaf] * rows), use.carry), jnp.stack([use.xs] * rows, 1)
    return Use(cell, use.params, carry, xs + 0.1 * jnp.arange(rows).reshape(1, rows, *[1] * (xs.ndim - 2)))


USES: dict[str, Callable[[int], Use]] = {
    **{
        f"Kalman filter, {states} states, {observed} observed": lambda steps, sizes=(states, observed): kalman(
            *sizes, steps
        )
        for states in (2, 4, 6, 8)
        for observed in (1, 2)
    },
    "Kalman filter by division, 4 states": lambda steps: kalman_by_division(4, steps),
    "Kalman filter by division, 8 states": lambda steps: kalman_by_division(8, steps),
    "Kalman filter by division, 16 states": lambda steps: kalman_by_division(16, steps),
    "square root Kalman filter, 4 states": lambda steps: square_root_kalman(4, 2, steps),
    "extended Kalman filter, 3 states": extended_kalman,
    **{
        f"8 Kalman filters, {states} states, {observed} observed": lambda steps, sizes=(states, observed): in_rows(
            kalman(*sizes, steps), 8
        )
        for states in (2, 4, 6, 8)
        for observed in (1, 2)
    },
    "hidden Markov model, 4 states": lambda steps: hidden_markov(4, steps),
    "GARCH(1, 1)": garch,
    "SIR epidemic, Runge-Kutta 4": epidemic,
    "40 scalar leaves": lambda steps: scalars(40, steps),
    "LSTM, 8 units": lambda steps: of_cell(rs.cells.LSTM(8), steps),
    "GRU, 8 units": lambda steps: of_cell(rs.cells.GRU(8), steps),
}
