"""The differentiable neural computer, with one head that reads: a memory with usage and links between its slots.

    usage: u' = (u + w - u * w) * (1 - f r)
    allocation: a over the slots sorted by usage, (1 - u_j) * product of u over the less used
    write: w' = g_w (g_a a + (1 - g_a) c),  M' = M * (1 - w' e^T) + w' v^T
    links: L'_ij = (1 - w'_i - w'_j) L_ij + w'_i p_j, zero on the diagonal,  p' = (1 - sum w') p + w'
    read: r' = m_1 L'^T r + m_2 c' + m_3 L' r

Source: Graves et al. 2016, "Hybrid computing using a neural network with dynamic external memory", methods.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def cell(params: Any, carry: Any, x: Array) -> tuple[Any, Array]:
    """Carry: h, M (N, S, W), u, links (N, S, S), p, the write and read weights (N, S), and what was read (N, W)."""
    hidden, memory, usage, links, precedence, write, read, value = carry
    hidden = jnp.tanh(jnp.concatenate([x, value, hidden], -1) @ params["kernel"] + params["bias"])
    keys, erase, new, controls = jnp.split(hidden @ params["interface"], _splits(memory.shape[-1]), -1)
    write_key, read_key = jnp.split(keys, 2, -1)
    free, allocate, at_all, write_strength, read_strength = jnp.split(controls[:, :5], 5, -1)
    usage = (usage + write - usage * write) * (1 - jax.nn.sigmoid(free) * read)
    content = _content(memory, write_key, write_strength)
    allocate = jax.nn.sigmoid(allocate)
    write = jax.nn.sigmoid(at_all) * (allocate * _allocation(usage) + (1 - allocate) * content)
    memory = memory * (1 - write[..., None] * jax.nn.sigmoid(erase)[:, None]) + write[..., None] * new[:, None]
    links = (1 - write[:, :, None] - write[:, None]) * links + write[:, :, None] * precedence[:, None]
    links = links * (1 - jnp.eye(links.shape[-1], dtype=links.dtype))
    precedence = (1 - jnp.sum(write, -1, keepdims=True)) * precedence + write
    modes = jax.nn.softmax(controls[:, 5:])
    backward, forward = jnp.einsum("nst,ns->nt", links, read), jnp.einsum("nst,nt->ns", links, read)
    read = modes[:, :1] * backward + modes[:, 1:2] * _content(memory, read_key, read_strength) + modes[:, 2:] * forward
    value = jnp.einsum("ns,nsw->nw", read, memory)
    return (hidden, memory, usage, links, precedence, write, read, value), value


def _splits(width: int) -> list[int]:
    """Both keys, the erased and the new value; then five numbers and three modes."""
    return [2 * width, 3 * width, 4 * width]


def _content(memory: Array, key: Array, strength: Array) -> Array:
    norms = jnp.sqrt(jnp.sum(memory**2, -1) * jnp.sum(key**2, -1)[:, None] + 1e-6)
    similarity = jnp.einsum("nsw,nw->ns", memory, key) / norms
    return jax.nn.softmax((1 + jax.nn.softplus(strength)) * similarity)


def _allocation(usage: Array) -> Array:
    order = jnp.argsort(usage, -1)
    ascending = jnp.take_along_axis(usage, order, -1)
    before = jnp.cumprod(jnp.pad(ascending, ((0, 0), (1, 0)), constant_values=1)[:, :-1], -1)
    return jnp.take_along_axis((1 - ascending) * before, jnp.argsort(order, -1), -1)


def _make(draw: Draw, *, steps: int, rows: int, features: int, hidden: int, slots: int, width: int) -> Problem:
    params = {
        "kernel": draw.kernel(features + width + hidden, hidden),
        "bias": draw(hidden),
        "interface": draw.kernel(hidden, 4 * width + 8),
    }
    weights = lambda: jax.nn.softmax(draw(rows, slots))  # noqa: E731
    links = draw.uniform(rows, slots, slots, high=1 / slots)
    usage = draw.uniform(rows, slots, low=0.1, high=0.9)
    memory = draw(rows, slots, width)
    carry = draw(rows, hidden), memory, usage, links, weights(), weights(), weights(), draw(rows, width)
    return Problem(one_scan(cell), params, carry, draw(steps, rows, features))


USES = {
    "dnc": Use(
        "differentiable neural computer",
        _make,
        {"steps": 30, "rows": 8, "features": 16, "hidden": 64, "slots": 32, "width": 16},
        {"steps": 3, "rows": 2, "features": 2, "hidden": 4, "slots": 4, "width": 3},
        1e-3,
    )
}
