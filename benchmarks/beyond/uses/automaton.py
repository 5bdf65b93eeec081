"""A neural cellular automaton: each cell of a grid reads its neighbours and updates itself.

    u' = u + mask * relu(conv3x3(u) W_1 + b_1) W_2

Source: Mordvintsev et al. 2020, "Growing Neural Cellular Automata".
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def cell(params: Any, grid: Array, chance: Array) -> tuple[Array, Array]:
    """Carry: the grid (N, H, W, C). Input: a uniform number for each of its cells (N, H, W, 1)."""
    layout = ("NHWC", "HWIO", "NHWC")
    seen = lax.conv_general_dilated(grid, params["perceive"], (1, 1), "SAME", dimension_numbers=layout)
    change = jax.nn.relu(seen @ params["kernel_in"] + params["bias_in"]) @ params["kernel_out"]
    grid = grid + jnp.where(chance < 0.5, change, 0)
    return grid, jnp.mean(grid, (1, 2))


def _make(draw: Draw, *, steps: int, rows: int, size: int, channels: int, hidden: int) -> Problem:
    params = {
        "perceive": draw(3, 3, channels, 3 * channels, scale=(9 * channels) ** -0.5),
        "kernel_in": draw.kernel(3 * channels, hidden),
        "bias_in": draw(hidden),
        "kernel_out": 0.1 * draw.kernel(hidden, channels),
    }
    xs = draw.uniform(steps, rows, size, size, 1)
    return Problem(one_scan(cell), params, draw(rows, size, size, channels), xs)


USES = {
    "automaton": Use(
        "neural cellular automaton",
        _make,
        {"steps": 16, "rows": 2, "size": 16, "channels": 8, "hidden": 32},
        {"steps": 3, "rows": 2, "size": 3, "channels": 2, "hidden": 3},
        ranges={"size": (3, 64), "channels": (1, 64)},
    )
}
