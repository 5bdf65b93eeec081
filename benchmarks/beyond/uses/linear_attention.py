"""Attention as a linear recurrence with a matrix state S (K, V) for each row and head.

    S' = a * S + k v^T,  y = S'^T q

"linear-attention": a = 1, q and k positive, with the normaliser z' = z + k, y = S'^T q / (z' . q).
"retnet": a constant for each head. "gla": a gate for each key, a = sigmoid(.)^(1/16).
The inputs are q, k, v and the gates' logits, as a layer of projections gives them.

Sources: Katharopoulos et al. 2020, "Transformers are RNNs", equations 18 to 20; Sun et al. 2023, "Retentive Network",
equation 6; Yang et al. 2023, "Gated Linear Attention Transformers", equation 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.beyond.chunkwise import chunkwise
from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def linear_cell(params: Any, carry: tuple[Array, Array], x: Any) -> tuple[Any, Array]:
    """Carry: S (N, heads, K, V) and z (N, heads, K)."""
    query, key, value = _positive(params, x)
    state = carry[0] + key[..., None] * value[..., None, :]
    total = carry[1] + key
    return (state, total), _read(query, state) / jnp.sum(query * total, -1, keepdims=True)


def retnet_cell(params: Any, state: Array, x: Any) -> tuple[Array, Array]:
    """Carry: S. `params`: the decay of each head."""
    query, key, value = x
    state = params[:, None, None] * state + key[..., None] * value[..., None, :]
    return state, _read(query, state)


def gla_cell(params: Any, state: Array, x: Any) -> tuple[Array, Array]:
    """Carry: S. `params`: the bias of the gates."""
    query, key, value, gate = x
    decay = jax.nn.sigmoid(gate + params) ** (1 / 16)
    state = decay[..., None] * state + key[..., None] * value[..., None, :]
    return state, _read(query, state)


def _linear_by_chunks(params: Any, carry: Any, xs: Any) -> Any:
    query, key, value = _positive(params, xs)
    # A column of ones in v makes the normaliser a column of S.
    value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], -1)
    state = jnp.concatenate([carry[0], carry[1][..., None]], -1)
    state, read = chunkwise(jnp.zeros((*key.shape[:-1], 1), key.dtype), query, key, value, state)
    return (state[..., :-1], state[..., -1]), read[..., :-1] / read[..., -1:]


def _retnet_by_chunks(params: Any, carry: Any, xs: Any) -> Any:
    query, key, value = xs
    log_decay = jnp.broadcast_to(jnp.log(params)[:, None], (*key.shape[:-1], 1))
    return chunkwise(log_decay, query, key, value, carry)


def _gla_by_chunks(params: Any, carry: Any, xs: Any) -> Any:
    query, key, value, gate = xs
    return chunkwise(jax.nn.log_sigmoid(gate + params) / 16, query, key, value, carry)


def _positive(params: Any, x: Any) -> tuple[Array, Array, Array]:
    query, key, value = x
    return jax.nn.elu(query * params) + 1, jax.nn.elu(key * params) + 1, value


def _read(query: Array, state: Array) -> Array:
    return jnp.einsum("nhk,nhkv->nhv", query, state)


def _inputs(draw: Draw, steps: int, rows: int, heads: int, keys: int, values: int) -> tuple[Any, Any]:
    """q, k and v, and the state before the first step."""
    query, key, value = (draw(steps, rows, heads, size) for size in (keys, keys, values))
    return (query, key * keys**-0.5, value), draw(rows, heads, keys, values)


def _make_linear(draw: Draw, **sizes: int) -> Problem:
    xs, state = _inputs(draw, **sizes)
    carry = state, draw.uniform(*state.shape[:-1], low=0.5, high=1)
    return Problem(one_scan(linear_cell), draw.uniform(sizes["keys"], low=0.5), carry, xs, _linear_by_chunks)


def _make_retnet(draw: Draw, **sizes: int) -> Problem:
    xs, state = _inputs(draw, **sizes)
    decay = jnp.asarray(1 - 2.0 ** (-5 - np.arange(sizes["heads"])), float)
    return Problem(one_scan(retnet_cell), decay, state, xs, _retnet_by_chunks)


def _make_gla(draw: Draw, **sizes: int) -> Problem:
    xs, state = _inputs(draw, **sizes)
    xs = *xs, draw(*xs[1].shape)
    return Problem(one_scan(gla_cell), draw(sizes["heads"], sizes["keys"]), state, xs, _gla_by_chunks)


SIZES = {"steps": 64, "rows": 4, "heads": 4, "keys": 64, "values": 64}
LONG = SIZES | {"steps": 2048}
TINY = {"steps": 6, "rows": 2, "heads": 2, "keys": 3, "values": 4}

USES = {
    "linear-attention": Use("linear attention", _make_linear, SIZES, TINY),
    "retnet": Use("RetNet", _make_retnet, SIZES, TINY),
    "gla": Use("GLA", _make_gla, SIZES, TINY),
    # The form by hand is further from the loop than rnnscan's: 2.2e-4 of RetNet's loss.
    "retnet-long": Use("RetNet", _make_retnet, LONG, TINY, 1e-3, long=True),
    "gla-long": Use("GLA", _make_gla, LONG, TINY, 1e-3, long=True),
}
