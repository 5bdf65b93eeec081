"""Linear cells by hand: `lax.associative_scan` over all steps, as in their papers."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.workloads import CellPair


def associative_lru(cell: CellPair, params: Any, carry: Any, xs: Array) -> tuple[Any, Array]:
    """The LRU from a state of zeros (Orvieto et al. 2023, section 3)."""
    factor = jnp.exp(lax.complex(-jnp.exp(params["log_decay"]), jnp.exp(params["log_phase"])))
    update = jnp.exp(params["log_scale"]) * lax.complex(
        xs @ params["input_kernel_real"], xs @ params["input_kernel_imag"]
    )
    states = linear_recurrence(jnp.broadcast_to(factor, update.shape), update)
    ys = states.real @ params["output_kernel_real"] - states.imag @ params["output_kernel_imag"]
    return (states[-1],), ys + xs @ params["skip_kernel"]


def associative_rg_lru(cell: CellPair, params: Any, carry: Any, xs: Array) -> tuple[Any, Array]:
    """The RG-LRU of one head from a state of zeros (De et al. 2024, equations 1 to 4)."""
    recurrence, given = jnp.split(jax.nn.sigmoid(xs @ params["kernel"][0] + params["bias"]), 2, axis=-1)
    log_decay = 8.0 * recurrence * jax.nn.log_sigmoid(params["decay"])
    rest = -jnp.expm1(2 * log_decay)
    root = jnp.where(rest > 0, jnp.sqrt(jnp.where(rest > 0, rest, 1)), 0)
    ys = linear_recurrence(jnp.exp(log_decay), root * given * xs)
    return (ys[-1],), ys


def linear_recurrence(factors: Array, terms: Array) -> Array:
    """`h_t = factors_t * h_{t-1} + terms_t` from 0, for all steps."""

    def combine(earlier: Any, later: Any) -> Any:
        return earlier[0] * later[0], earlier[1] * later[0] + later[1]

    return lax.associative_scan(combine, (factors, terms))[1]
