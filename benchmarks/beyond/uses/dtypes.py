"""Carries of other dtypes.

"spiking": leaky neurons whose spike, a step function, has a surrogate derivative. "refractory": the same neurons with a
flag and an int8 counter of the steps for which a neuron rests. "bfloat16": a residual network in bfloat16.

Sources: Neftci et al. 2019, "Surrogate Gradient Learning in Spiking Neural Networks", equations 4, 5 and 8.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


@jax.custom_jvp
def spike(potential: Array) -> Array:
    """1 above 0, with the derivative of a fast sigmoid."""
    return (potential > 0).astype(potential.dtype)


@spike.defjvp
def _spike_derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (potential,), (tangent,) = primals, tangents
    return spike(potential), tangent / (1 + 10 * jnp.abs(potential)) ** 2


def spiking_cell(params: Any, carry: tuple[Array, Array], x: Array) -> tuple[Any, Array]:
    """Carry: potential and spikes (N, H). Input: (N, D)."""
    potential, spikes = carry
    current = x @ params["kernel"] + spikes @ params["recurrent_kernel"] + params["bias"]
    potential = jax.nn.sigmoid(params["leak"]) * potential * (1 - spikes) + current
    spikes = spike(potential - 1)
    return (potential, spikes), spikes


def refractory_cell(params: Any, carry: tuple[Array, Array, Array], x: Array) -> tuple[Any, Any]:
    """Carry: potential (N, H), the steps to rest (N, H) of int8, and whether the last step fired (N, H)."""
    potential, rest, fired = carry
    current = x @ params["kernel"] + fired.astype(x.dtype) @ params["recurrent_kernel"] + params["bias"]
    potential = jnp.where(rest > 0, 0, jax.nn.sigmoid(params["leak"]) * potential + current)
    fired = potential > 1
    rest = jnp.where(fired, jnp.int8(3), jnp.maximum(rest - 1, 0).astype(jnp.int8))
    return (potential, rest, fired), (potential, fired)


def bfloat16_cell(params: Any, state: Array, x: Array) -> tuple[Array, Array]:
    """Carry: (N, H)."""
    hidden = jax.nn.gelu(state @ params["kernel_in"] + params["bias_in"])
    state = 0.9 * state + hidden @ params["kernel_out"] + x
    return state, state


def _neurons(draw: Draw, features: int, hidden: int) -> Any:
    return {
        "kernel": draw.kernel(features, hidden),
        "recurrent_kernel": draw.kernel(hidden, hidden),
        "bias": draw(hidden),
        "leak": draw(hidden),
    }


def _make_spiking(draw: Draw, *, steps: int, rows: int, features: int, hidden: int) -> Problem:
    carry = draw(rows, hidden), draw.integers(rows, hidden, below=2).astype(float)
    return Problem(one_scan(spiking_cell), _neurons(draw, features, hidden), carry, draw(steps, rows, features))


def _make_refractory(draw: Draw, *, steps: int, rows: int, features: int, hidden: int) -> Problem:
    rest = draw.integers(rows, hidden, below=3).astype(jnp.int8)
    carry = draw(rows, hidden), rest, draw.integers(rows, hidden, below=2).astype(bool)
    return Problem(one_scan(refractory_cell), _neurons(draw, features, hidden), carry, draw(steps, rows, features))


def _make_bfloat16(draw: Draw, *, steps: int, rows: int, hidden: int, dtype: str) -> Problem:
    params = {
        "kernel_in": draw.kernel(hidden, hidden),
        "bias_in": draw(hidden),
        "kernel_out": 0.1 * draw.kernel(hidden, hidden),
    }
    arguments = params, draw(rows, hidden), draw(steps, rows, hidden)
    return Problem(one_scan(bfloat16_cell), *jax.tree.map(lambda leaf: leaf.astype(dtype), arguments))


SIZES = {"steps": 100, "rows": 16, "features": 64, "hidden": 128}
TINY = {"steps": 5, "rows": 2, "features": 2, "hidden": 3}

USES = {
    "spiking": Use("spiking neurons", _make_spiking, SIZES, TINY, 1e-3),
    "refractory": Use("refractory neurons, int8 and bool", _make_refractory, SIZES, TINY, 1e-3),
    "bfloat16": Use(
        "bfloat16",
        _make_bfloat16,
        {"steps": 100, "rows": 32, "hidden": 256, "dtype": "bfloat16"},
        {"steps": 4, "rows": 2, "hidden": 3, "dtype": "float64"},
        5e-2,
    ),
}
