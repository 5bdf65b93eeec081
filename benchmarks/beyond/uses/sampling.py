"""Samplers, differentiated through their steps.

"hmc": Hamiltonian Monte Carlo, leapfrog steps and an acceptance, with the momenta and uniform numbers as inputs.
"langevin": x' = x + e grad log p(x) + sqrt(2 e) noise, with a random key in the carry. Both sample the weights of a
logistic regression. "particle-filter": particles move, are weighted by an observation and resampled systematically.

Sources: Neal 2011, "MCMC using Hamiltonian dynamics", figure 2; Welling and Teh 2011, "Stochastic Gradient Langevin
Dynamics"; Doucet and Johansen 2009, "A Tutorial on Particle Filtering", section 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


LEAPS = 4


def hmc_cell(params: Any, position: Array, x: tuple[Array, Array]) -> tuple[Array, Any]:
    """Carry: the weights of each chain (N, D). Input: momenta (N, D) and uniform numbers (N)."""
    momentum, uniform = x
    step = jnp.exp(params["log_step"])
    slope = jax.grad(lambda position: jnp.sum(_log_density(params, position)))
    proposal, moved = position, momentum + step / 2 * slope(position)
    for leap in range(LEAPS):
        proposal = proposal + step * moved
        moved = moved + (step if leap < LEAPS - 1 else step / 2) * slope(proposal)
    energy, new_energy = (
        jnp.sum(momentum**2, -1) / 2 - _log_density(params, position)
        for position, momentum in ((position, momentum), (proposal, moved))
    )
    accepted = jnp.log(uniform) < energy - new_energy
    position = jnp.where(accepted[:, None], proposal, position)
    return position, (position, accepted)


def langevin_cell(params: Any, carry: tuple[Array, Array], _: None) -> tuple[Any, Array]:
    """Carry: a random key, and the weights of each chain (N, D)."""
    key, position = carry
    key, noise_key = jax.random.split(key)
    step = jnp.exp(params["log_step"]) ** 2 / 2
    slope = jax.grad(lambda position: jnp.sum(_log_density(params, position)))(position)
    noise = jax.random.normal(noise_key, position.shape, position.dtype)
    position = position + step * slope + jnp.sqrt(2 * step) * noise
    return (key, position), position


def particle_cell(params: Any, carry: tuple[Array, Array], x: Any) -> tuple[Any, Any]:
    """Carry: particles (P, D), and their log-weights (P). Input: observation (O), noise (P, D), a uniform number."""
    particles, weights = carry
    observation, noise, uniform = x
    chosen = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(weights)), (jnp.arange(len(weights)) + uniform) / len(weights))
    particles = particles[jnp.minimum(chosen, len(weights) - 1)]
    particles = jnp.tanh(particles @ params["move"] + params["bias"]) + 0.3 * noise
    weights = -jnp.sum((observation - particles @ params["observe"]) ** 2, -1) / 2
    return (particles, weights), (jax.nn.logsumexp(weights), jax.nn.softmax(weights) @ particles)


def _log_density(params: Any, position: Array) -> Array:
    margins = params["labels"] * (position @ params["features"].T)
    return jnp.sum(jax.nn.log_sigmoid(margins), -1) - jnp.sum(position**2, -1) / 2


def _regression(draw: Draw, examples: int, features: int) -> Any:
    labels = 2 * draw.integers(examples, below=2).astype(float) - 1
    return {"features": draw(examples, features), "labels": labels, "log_step": draw(scale=0.1) - 3}


def _make_hmc(draw: Draw, *, steps: int, rows: int, examples: int, features: int) -> Problem:
    xs = draw(steps, rows, features), draw.uniform(steps, rows)
    return Problem(one_scan(hmc_cell), _regression(draw, examples, features), draw(rows, features), xs)


def _make_langevin(draw: Draw, *, steps: int, rows: int, examples: int, features: int) -> Problem:
    carry = jax.random.key(0), draw(rows, features)
    return Problem(one_scan(langevin_cell, length=steps), _regression(draw, examples, features), carry, None)


def _make_particles(draw: Draw, *, steps: int, particles: int, state: int, observed: int) -> Problem:
    params = {"move": draw.kernel(state, state), "bias": draw(state), "observe": draw.kernel(state, observed)}
    xs = draw(steps, observed), draw(steps, particles, state), draw.uniform(steps)
    return Problem(one_scan(particle_cell), params, (draw(particles, state), draw(particles)), xs)


SIZES = {"steps": 50, "rows": 16, "examples": 128, "features": 16}
TINY = {"steps": 4, "rows": 2, "examples": 3, "features": 2}

USES = {
    "hmc": Use("Hamiltonian Monte Carlo", _make_hmc, SIZES, TINY, 1e-3),
    "langevin": Use("Langevin dynamics, a key in the carry", _make_langevin, SIZES | {"steps": 200}, TINY, 1e-3),
    "particle-filter": Use(
        "particle filter",
        _make_particles,
        {"steps": 100, "particles": 512, "state": 8, "observed": 4},
        {"steps": 4, "particles": 5, "state": 3, "observed": 2},
        1e-2,
    ),
}
