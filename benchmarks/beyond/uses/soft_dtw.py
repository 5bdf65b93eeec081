"""Soft dynamic time warping between two series, one diagonal of the table at a time.

    r_ij = |a_i - b_j|^2 + softmin(r_{i-1,j}, r_{i,j-1}, r_{i-1,j-1}),  softmin(r) = -logsumexp(-r)

Source: Cuturi and Blondel 2017, "Soft-DTW", equation 2 and algorithm 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Scan, Use


OUTSIDE = 1e3


def cell(params: Any, carry: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[Any, Array]:
    """Carry: the last two diagonals (N, L). Input: a diagonal of the distances, and which entries are inside."""
    last, before = carry
    distance, inside = x
    shifted = [jnp.pad(one, ((0, 0), (1, 0)), constant_values=OUTSIDE)[:, :-1] for one in (last, before)]
    costs = distance - jax.nn.logsumexp(-jnp.stack([last, *shifted]), 0)
    costs = jnp.where(inside, costs, OUTSIDE)
    return (costs, last), jnp.where(inside, costs, 0)


def _run(scan: Scan, params: tuple[Array, Array], carry: Any, xs: None) -> Any:
    first, second = params
    length = first.shape[1]
    distances = jnp.sum((first[:, :, None] - second[:, None]) ** 2, -1)
    rows = jnp.arange(length)
    columns = jnp.arange(2 * length - 1)[:, None] - rows
    inside = (columns >= 0) & (columns < length)
    diagonals = distances[:, rows, jnp.clip(columns, 0, length - 1)]
    return scan(cell, None, carry, (jnp.moveaxis(diagonals, 1, 0), inside))[1]


def _make(draw: Draw, *, rows: int, length: int, features: int) -> Problem:
    params = tuple(draw(rows, length, features, scale=features**-0.5) for _ in range(2))
    # The first entry's predecessor costs nothing, up to the rounding of a draw.
    before = jnp.full((rows, length), OUTSIDE)
    last = before.at[:, 0].set(draw.uniform(rows))
    return Problem(_run, params, (last, before), None)


USES = {
    "soft-dtw": Use(
        "soft-DTW",
        _make,
        {"rows": 16, "length": 128, "features": 4},
        {"rows": 2, "length": 4, "features": 2},
        ranges={"length": (5, 4096)},  # The scan has 2 * length - 1 steps.
    )
}
