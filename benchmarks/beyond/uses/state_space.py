"""Selective state spaces.

"s6", the recurrence of Mamba, whose decay differs along both axes of the state (D, S):

    d = softplus(x W_d + b_d),  h' = exp(d A) * h + (d x) B^T,  y = h' C + x * D,  B = x W_B,  C = x W_C

"mamba2": one decay exp(d a) a head, so that it is linear attention with k = B, v = d x and q = C.

Sources: Gu and Dao 2023, "Mamba", algorithm 2; Dao and Gu 2024, "Transformers are SSMs", section 5.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.chunkwise import chunkwise
from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def s6_cell(params: Any, state: Array, x: Array) -> tuple[Array, Array]:
    """Carry: h (N, D, S). Input: (N, D)."""
    step = jax.nn.softplus(x @ params["kernel_step"] + params["bias_step"])
    decay = jnp.exp(step[..., None] * -jnp.exp(params["log_decay"]))
    state = decay * state + (step * x)[..., None] * (x @ params["kernel_write"])[:, None]
    return state, jnp.einsum("nds,ns->nd", state, x @ params["kernel_read"]) + x * params["skip"]


def mamba2_cell(params: Any, state: Array, x: Any) -> tuple[Array, Array]:
    """Carry: h (N, heads, S, D). Input: the values (N, heads, D), B and C (N, S), and d before softplus (N, heads)."""
    log_decay, query, key, value = _ssd(params, x)
    state = jnp.exp(log_decay)[..., None] * state + key[..., None] * value[..., None, :]
    return state, jnp.einsum("nhk,nhkv->nhv", query, state)


def _ssd(params: Any, x: Any) -> tuple[Array, Array, Array, Array]:
    """The logarithm of the decay (..., heads, 1), q, k and v."""
    value, write, read, step = x
    step = jax.nn.softplus(step + params["bias_step"])[..., None]
    shape = (*value.shape[:-1], write.shape[-1])
    query, key = (jnp.broadcast_to(shared[..., None, :], shape) for shared in (read, write))
    return step * -jnp.exp(params["log_decay"])[:, None], query, key, step * value


def _mamba2_by_chunks(params: Any, carry: Any, xs: Any) -> Any:
    return chunkwise(*_ssd(params, xs), carry)


def _make_s6(draw: Draw, *, steps: int, rows: int, features: int, states: int) -> Problem:
    params = {
        "kernel_step": draw.kernel(features, features),
        "bias_step": draw(features) - 1,
        "log_decay": draw(features, states),
        "kernel_write": draw.kernel(features, states),
        "kernel_read": draw.kernel(features, states),
        "skip": draw(features),
    }
    return Problem(one_scan(s6_cell), params, draw(rows, features, states), draw(steps, rows, features))


def _make_mamba2(draw: Draw, *, steps: int, rows: int, heads: int, features: int, states: int) -> Problem:
    params = {"bias_step": draw(heads) - 1, "log_decay": draw(heads)}
    shapes = (heads, features), (states,), (states,), (heads,)
    xs = tuple(draw(steps, rows, *shape) for shape in shapes)
    return Problem(one_scan(mamba2_cell), params, draw(rows, heads, states, features), xs, _mamba2_by_chunks)


USES = {
    "s6": Use(
        "S6, the recurrence of Mamba",
        _make_s6,
        {"steps": 128, "rows": 4, "features": 64, "states": 16},
        {"steps": 6, "rows": 2, "features": 3, "states": 4},
    ),
    "mamba2": Use(
        "Mamba-2",
        _make_mamba2,
        {"steps": 64, "rows": 4, "heads": 4, "features": 64, "states": 64},
        {"steps": 6, "rows": 2, "heads": 2, "features": 3, "states": 4},
    ),
}
