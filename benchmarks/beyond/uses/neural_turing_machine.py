"""The neural Turing machine, with one head that reads and one that writes. For each head, with its key k,

    w_c = softmax(b cosine(k, M)),  w_g = g w_c + (1 - g) w
    w_s = w_g convolved with the shift s,  w' = w_s^c / sum(w_s^c)
    M' = M * (1 - w' e^T) + w' a^T,  read = M'^T w'

Source: Graves et al. 2014, "Neural Turing Machines", equations 2 to 9.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def cell(params: Any, carry: Any, x: Array) -> tuple[Any, Array]:
    """Carry: h (N, H), M (N, L, W), the weights of both heads (N, L), and what was read (N, W)."""
    hidden, memory, write, read, value = carry
    hidden = jnp.tanh(jnp.concatenate([x, value, hidden], -1) @ params["kernel"] + params["bias"])
    write = _address(params["write"], hidden, memory, write)
    erase, add = jnp.split(hidden @ params["change"], 2, -1)
    memory = memory * (1 - write[..., None] * jax.nn.sigmoid(erase)[:, None]) + write[..., None] * add[:, None]
    read = _address(params["read"], hidden, memory, read)
    value = jnp.einsum("nl,nlw->nw", read, memory)
    return (hidden, memory, write, read, value), value


def _address(kernel: Array, hidden: Array, memory: Array, weights: Array) -> Array:
    width = memory.shape[-1]
    key, controls = jnp.split(hidden @ kernel, [width], -1)
    norms = jnp.sqrt(jnp.sum(memory**2, -1) * jnp.sum(key**2, -1)[:, None] + 1e-6)
    similarity = jnp.einsum("nlw,nw->nl", memory, key) / norms
    content = jax.nn.softmax(jax.nn.softplus(controls[:, :1]) * similarity)
    gate = jax.nn.sigmoid(controls[:, 1:2])
    weights = gate * content + (1 - gate) * weights
    shift = jax.nn.softmax(controls[:, 2:5])
    weights = sum(shift[:, by + 1, None] * jnp.roll(weights, by, -1) for by in (-1, 0, 1))
    sharp = weights ** (1 + jax.nn.softplus(controls[:, 5:6]))
    return sharp / jnp.sum(sharp, -1, keepdims=True)


def _make(draw: Draw, *, steps: int, rows: int, features: int, hidden: int, slots: int, width: int) -> Problem:
    params = {
        "kernel": draw.kernel(features + width + hidden, hidden),
        "bias": draw(hidden),
        "write": draw.kernel(hidden, width + 6),
        "read": draw.kernel(hidden, width + 6),
        "change": draw.kernel(hidden, 2 * width),
    }
    weights = (jax.nn.softmax(draw(rows, slots)) for _ in range(2))
    carry = draw(rows, hidden), draw(rows, slots, width), *weights, draw(rows, width)
    return Problem(one_scan(cell), params, carry, draw(steps, rows, features))


USES = {
    "ntm": Use(
        "neural Turing machine",
        _make,
        {"steps": 50, "rows": 16, "features": 16, "hidden": 100, "slots": 64, "width": 20},
        {"steps": 3, "rows": 2, "features": 2, "hidden": 4, "slots": 4, "width": 3},
        1e-3,
    )
}
