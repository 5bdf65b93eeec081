"""Algorithms of a fixed number of iterations.

"online-softmax": attention over blocks of keys with the softmax's running maximum and sum, as in FlashAttention.
"sinkhorn": optimal transport, f' = -logsumexp_j(g_j - C_ij), g' = -logsumexp_i(f'_i - C_ij).
"orthogonalise": X' = a X + b (X X^T) X with coefficients for each step, as in Muon; the carry is large beside its step.
"diffusion": a sampler, x' = s (x - e(x, t)) + e(x, t) s', with a network e.

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Cuturi 2013, "Sinkhorn Distances";
Jordan et al. 2024, "Muon"; Song et al. 2021, "Denoising Diffusion Implicit Models", equation 12.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def softmax_cell(query: Array, carry: tuple[Array, Array, Array], x: tuple[Array, Array]) -> tuple[Any, None]:
    """Carry: the weighted sum (N, Q, D), the maximum and the sum of the weights (N, Q). Input: keys and values."""
    read, largest, total = carry
    key, value = x
    scores = query @ jnp.swapaxes(key, 1, 2) / query.shape[-1] ** 0.5
    new_largest = jnp.maximum(largest, jnp.max(scores, -1))
    weights = jnp.exp(scores - new_largest[..., None])
    keep = jnp.exp(largest - new_largest)
    read = keep[..., None] * read + weights @ value
    return (read, new_largest, keep * total + jnp.sum(weights, -1)), None


def sinkhorn_cell(costs: Array, carry: tuple[Array, Array], _: None) -> tuple[Any, Array]:
    """Carry: f and g (N, L)."""
    f = -jax.nn.logsumexp(carry[1][:, None] - costs, -1)
    g = -jax.nn.logsumexp(f[:, :, None] - costs, 1)
    return (f, g), jnp.max(jnp.abs(f - carry[0]), -1)


def orthogonalise_cell(params: None, matrix: Array, coefficients: Array) -> tuple[Array, None]:
    """Carry: X (D, D). Input: a and b."""
    return coefficients[0] * matrix + coefficients[1] * (matrix @ matrix.T) @ matrix, None


def diffusion_cell(params: Any, state: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
    """Carry: (N, D). Input: a vector for the time (H), and the scales s and s'."""
    time, scales = x
    noise = jnp.tanh(state @ params["kernel_in"] + time) @ params["kernel"]
    noise = jnp.tanh(noise + params["bias"]) @ params["kernel_out"]
    state = scales[0] * (state - noise) + scales[1] * noise
    return state, noise


def _make_softmax(draw: Draw, *, steps: int, rows: int, queries: int, block: int, features: int) -> Problem:
    carry = draw(rows, queries, features), draw(rows, queries), draw.uniform(rows, queries, low=0.5)
    xs = draw(steps, rows, block, features), draw(steps, rows, block, features)
    return Problem(one_scan(softmax_cell), draw(rows, queries, features), carry, xs)


def _make_sinkhorn(draw: Draw, *, steps: int, rows: int, points: int) -> Problem:
    carry = draw(rows, points), draw(rows, points)
    return Problem(one_scan(sinkhorn_cell, length=steps), draw.uniform(rows, points, points), carry, None)


def _make_orthogonalise(draw: Draw, *, steps: int, size: int) -> Problem:
    xs = jnp.asarray([1.5, -0.5], float) + draw(steps, 2, scale=0.01)
    return Problem(one_scan(orthogonalise_cell), None, draw(size, size, scale=0.4 * size**-0.5), xs)


def _make_diffusion(draw: Draw, *, steps: int, rows: int, features: int, hidden: int) -> Problem:
    params = {
        "kernel_in": draw.kernel(features, hidden),
        "kernel": draw.kernel(hidden, hidden),
        "bias": draw(hidden),
        "kernel_out": draw.kernel(hidden, features),
    }
    xs = draw(steps, hidden), draw.uniform(steps, 2, low=0.9, high=1.0)
    return Problem(one_scan(diffusion_cell), params, draw(rows, features), xs)


USES = {
    "online-softmax": Use(
        "online softmax, as in FlashAttention",
        _make_softmax,
        {"steps": 16, "rows": 4, "queries": 128, "block": 64, "features": 64},
        {"steps": 3, "rows": 2, "queries": 2, "block": 3, "features": 4},
    ),
    "sinkhorn": Use(
        "Sinkhorn iterations",
        _make_sinkhorn,
        {"steps": 30, "rows": 2, "points": 96},
        {"steps": 3, "rows": 2, "points": 3},
        1e-3,
    ),
    "orthogonalise": Use(
        "orthogonalisation of a matrix",
        _make_orthogonalise,
        {"steps": 10, "size": 256},
        {"steps": 3, "size": 4},
    ),
    "diffusion": Use(
        "diffusion sampler",
        _make_diffusion,
        {"steps": 50, "rows": 32, "features": 32, "hidden": 256},
        {"steps": 4, "rows": 2, "features": 2, "hidden": 3},
    ),
}
