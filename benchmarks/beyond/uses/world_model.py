"""The recurrent state-space model of Dreamer: a deterministic and a stochastic state.

    h' = GRU(h, (z, action));  prior N(mean, deviation)(h');  posterior N(mean, deviation)(h', observation)
    z' = the posterior's mean + deviation * noise;  the output is KL(posterior, prior)

Source: Hafner et al. 2019, "Learning Latent Dynamics for Planning from Pixels", equation 4.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def cell(params: Any, carry: tuple[Array, Array], x: tuple[Array, Array, Array]) -> tuple[Any, Any]:
    """Carry: h (N, H) and z (N, Z). Input: action (N, A), embedded observation (N, E), noise (N, Z)."""
    hidden, latent = carry
    action, observation, noise = x
    inputs = jax.nn.elu(jnp.concatenate([latent, action], -1) @ params["kernel_in"] + params["bias_in"])
    hidden = _gru(params, hidden, inputs)
    prior_mean, prior = _normal(params["prior"], hidden)
    mean, deviation = _normal(params["posterior"], jnp.concatenate([hidden, observation], -1))
    latent = mean + deviation * noise
    ratio = deviation / prior
    divergence = jnp.sum(0.5 * (ratio**2 + ((mean - prior_mean) / prior) ** 2 - 1) - jnp.log(ratio), -1)
    return (hidden, latent), (hidden, latent, divergence)


def _gru(params: Any, hidden: Array, inputs: Array) -> Array:
    gates = jnp.concatenate([inputs, hidden], -1) @ params["kernel_gates"] + params["bias_gates"]
    reset, update = jnp.split(jax.nn.sigmoid(gates), 2, -1)
    candidate = jnp.tanh(jnp.concatenate([inputs, reset * hidden], -1) @ params["kernel_candidate"])
    return update * hidden + (1 - update) * candidate


def _normal(params: Any, inputs: Array) -> tuple[Array, Array]:
    statistics = jax.nn.elu(inputs @ params["kernel_in"] + params["bias_in"]) @ params["kernel_out"]
    mean, deviation = jnp.split(statistics, 2, -1)
    return mean, jax.nn.softplus(deviation) + 0.1


def _make(draw: Draw, *, steps: int, rows: int, hidden: int, latent: int, actions: int, observation: int) -> Problem:
    def normal(inputs: int) -> Any:
        return {
            "kernel_in": draw.kernel(inputs, hidden),
            "bias_in": draw(hidden),
            "kernel_out": draw.kernel(hidden, 2 * latent),
        }

    params = {
        "kernel_in": draw.kernel(latent + actions, hidden),
        "bias_in": draw(hidden),
        "kernel_gates": draw.kernel(2 * hidden, 2 * hidden),
        "bias_gates": draw(2 * hidden),
        "kernel_candidate": draw.kernel(2 * hidden, hidden),
        "prior": normal(hidden),
        "posterior": normal(hidden + observation),
    }
    xs = tuple(draw(steps, rows, size) for size in (actions, observation, latent))
    return Problem(one_scan(cell), params, (draw(rows, hidden), draw(rows, latent)), xs)


USES = {
    "rssm": Use(
        "RSSM, a world model",
        _make,
        {"steps": 50, "rows": 16, "hidden": 128, "latent": 32, "actions": 8, "observation": 128},
        {"steps": 4, "rows": 2, "hidden": 4, "latent": 3, "actions": 2, "observation": 3},
    )
}
