"""A carry that changes in place: key-value caches and the memory of Transformer-XL.

"kv-cache": a decoder's attention writes k and v of a step at its position, and reads all positions so far. With
feedback the output is the next step's input, as in sampling; without, the inputs are given, as in teacher forcing.
"transformer-xl": each step is a segment of a text, which attends to itself and to the last segments' hidden states.

Sources: Vaswani et al. 2017, "Attention Is All You Need", equation 1; Dai et al. 2019, "Transformer-XL", section 3.2.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def cached_cell(params: Any, carry: Any, x: Array) -> tuple[Any, Array]:
    """Carry: keys and values (N, L, H, D), and the position, an integer."""
    keys, values, position = carry
    query, key, value = (x @ kernel for kernel in params["projections"])
    split = lambda leaf: leaf.reshape(len(x), 1, *keys.shape[2:])  # noqa: E731
    keys = lax.dynamic_update_slice_in_dim(keys, split(key), position, 1)
    values = lax.dynamic_update_slice_in_dim(values, split(value), position, 1)
    scores = jnp.einsum("nhd,nlhd->nhl", split(query)[:, 0], keys) / keys.shape[-1] ** 0.5
    visible = jnp.arange(keys.shape[1]) <= position
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e9))
    read = jnp.einsum("nhl,nlhd->nhd", weights, values).reshape(x.shape)
    return (keys, values, position + 1), jnp.tanh(read @ params["kernel_out"] + params["bias_out"])


def feedback_cell(params: Any, carry: Any, x: Array) -> tuple[Any, Array]:
    """The same with the last output in the carry, to which the input, noise, is added."""
    cache, output = carry
    cache, output = cached_cell(params, cache, output + x)
    return (cache, output), output


def segment_cell(params: Any, memory: Array, x: Array) -> tuple[Array, Array]:
    """Carry: the last segments' hidden states (N, M, E). Input: a segment (N, S, E)."""
    context = jnp.concatenate([lax.stop_gradient(memory), x], 1)
    query, key, value = x @ params["query"], context @ params["key"], context @ params["value"]
    scores = query @ jnp.swapaxes(key, 1, 2) / x.shape[-1] ** 0.5
    visible = jnp.arange(context.shape[1]) <= memory.shape[1] + jnp.arange(x.shape[1])[:, None]
    hidden = x + jax.nn.softmax(jnp.where(visible, scores, -1e9)) @ value
    hidden = hidden + jax.nn.gelu(hidden @ params["kernel_in"]) @ params["kernel_out"]
    return jnp.concatenate([memory, hidden], 1)[:, x.shape[1] :], hidden


def _make_cache(draw: Draw, *, steps: int, rows: int, heads: int, features: int, feedback: bool) -> Problem:
    width = heads * features
    params = {
        "projections": tuple(draw.kernel(width, width) for _ in range(3)),
        "kernel_out": draw.kernel(width, width),
        "bias_out": draw(width),
    }
    cache = draw(rows, steps, heads, features), draw(rows, steps, heads, features), jnp.int32(0)
    xs = draw(steps, rows, width)
    if feedback:
        return Problem(one_scan(feedback_cell), params, (cache, draw(rows, width)), xs)
    return Problem(one_scan(cached_cell), params, cache, xs)


def _make_segments(draw: Draw, *, steps: int, rows: int, segment: int, memory: int, features: int) -> Problem:
    params = {name: draw.kernel(features, features) for name in ("query", "key", "value")}
    params |= {"kernel_in": draw.kernel(features, 4 * features), "kernel_out": draw.kernel(4 * features, features)}
    carry = draw(rows, memory, features)
    return Problem(one_scan(segment_cell), params, carry, draw(steps, rows, segment, features))


SIZES = {"steps": 64, "rows": 4, "heads": 4, "features": 32}
TINY = {"steps": 5, "rows": 2, "heads": 2, "features": 3}

USES = {
    "kv-cache": Use("key-value cache", _make_cache, SIZES | {"feedback": False}, TINY | {"feedback": False}),
    "kv-cache-feedback": Use(
        "key-value cache with feedback", _make_cache, SIZES | {"feedback": True}, TINY | {"feedback": True}
    ),
    "transformer-xl": Use(
        "Transformer-XL's memory",
        _make_segments,
        {"steps": 16, "rows": 2, "segment": 32, "memory": 64, "features": 128},
        {"steps": 4, "rows": 2, "segment": 2, "memory": 3, "features": 4},
    ),
}
