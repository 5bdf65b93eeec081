"""The mLSTM of xLSTM: linear attention with exponential gates and a stabiliser m. With f the logit of the forget gate,

    m' = max(log sigmoid(f) + m, i)
    C' = exp(log sigmoid(f) + m - m') C + exp(i - m') k v^T,  n' likewise with k
    y = C'^T q / max(|n' . q|, exp(-m'))

By chunks, with b the sums of log sigmoid(f) from the start of a chunk, m_t is the largest of b_t + m_0 and
b_t - b_s + i_s over s <= t, and the weight of step s at step t is exp(b_t - b_s + i_s - m_t).

Source: Beck et al. 2024, "xLSTM", equations 19 to 27; Beck et al. 2025, "Tiled Flash Linear Attention", section 2.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


CHUNK = 64


def cell(params: Any, carry: tuple[Array, Array, Array], x: Any) -> tuple[Any, Array]:
    """Carry: C (N, heads, K, V), n (N, heads, K), m (N, heads). `params`: the biases of both gates (2, heads)."""
    memory, total, largest = carry
    query, key, value, write, forget = x
    write, forget = write + params[0], jax.nn.log_sigmoid(forget + params[1])
    new_largest = jnp.maximum(forget + largest, write)
    keep, write = (jnp.exp(log - new_largest)[..., None] for log in (forget + largest, write))
    memory = keep[..., None] * memory + (write * key)[..., None] * value[..., None, :]
    total = keep * total + write * key
    read = jnp.einsum("nhk,nhkv->nhv", query, memory)
    norm = jnp.maximum(jnp.abs(jnp.sum(query * total, -1)), jnp.exp(-new_largest))
    return (memory, total, new_largest), read / norm[..., None]


def _by_chunks(params: Any, carry: Any, xs: Any) -> Any:
    query, key, value, write, forget = xs
    steps = len(key)
    size = next(size for size in range(CHUNK, 0, -1) if steps % size == 0)
    parts = query, key, value, write + params[0], jax.nn.log_sigmoid(forget + params[1])

    def chunks(leaf: Array) -> Array:
        return jnp.moveaxis(leaf.reshape(steps // size, size, *leaf.shape[1:]), 1, 3)

    carry, outputs = lax.scan(_chunk, carry, tuple(map(chunks, parts)))
    return carry, jnp.moveaxis(outputs, 3, 1).reshape(steps, *value.shape[1:])


def _chunk(carry: Any, x: Any) -> tuple[Any, Array]:
    memory, total, largest = carry
    query, key, value, write, forget = x
    passed = jnp.cumsum(forget, -1)
    earlier = jnp.tril(jnp.ones((passed.shape[-1],) * 2, bool))
    between = jnp.where(earlier, passed[..., :, None] - passed[..., None, :] + write[..., None, :], -jnp.inf)
    from_start = passed + largest[..., None]
    new_largest = jnp.maximum(from_start, jnp.max(between, -1))
    scores = query @ jnp.swapaxes(key, -1, -2) * jnp.exp(between - new_largest[..., None])
    keep = jnp.exp(from_start - new_largest)[..., None]
    read = scores @ value + keep * (query @ memory)
    norm = jnp.sum(scores, -1) + keep[..., 0] * jnp.einsum("nhck,nhk->nhc", query, total)
    outputs = read / jnp.maximum(jnp.abs(norm), jnp.exp(-new_largest))[..., None]
    last = new_largest[..., -1]
    keep = keep[..., -1, :]
    written = jnp.exp(passed[..., -1:] - passed + write - last[..., None])[..., None] * key
    memory = keep[..., None] * memory + jnp.swapaxes(written, -1, -2) @ value
    return (memory, keep * total + jnp.sum(written, -2), last), outputs


def _make(draw: Draw, *, steps: int, rows: int, heads: int, keys: int, values: int) -> Problem:
    sizes = (keys, keys, values)
    query, key, value = (draw(steps, rows, heads, size) for size in sizes)
    xs = query, key * keys**-0.5, value, draw(steps, rows, heads), draw(steps, rows, heads)
    carry = draw(rows, heads, keys, values), draw(rows, heads, keys), draw(rows, heads)
    biases = draw(2, heads) + jnp.asarray([[0.0], [3.0]], float)
    return Problem(one_scan(cell), biases, carry, xs, _by_chunks)


SIZES = {"steps": 64, "rows": 4, "heads": 4, "keys": 64, "values": 64}
TINY = {"steps": 6, "rows": 2, "heads": 2, "keys": 3, "values": 4}

# An output is divided by a norm that can be near zero, which enlarges its rounding.
USES = {
    "mlstm": Use("mLSTM", _make, SIZES, TINY, 1e-3),
    "mlstm-long": Use("mLSTM", _make, SIZES | {"steps": 2048}, TINY, 1e-3, long=True),
}
