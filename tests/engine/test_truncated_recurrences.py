"""Forward mode of a truncated recurrence that runs in parallel: its tangents are cut where the loop cuts them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from tiers import variants


STEPS, ROWS = 8, 3
CELLS = {
    "linear": lambda p, c, x: p * c + x,
    "clamped": lambda p, c, x: jnp.clip(c + p * x, -2, 3),
    "matrix": lambda p, c, x: jax.nn.sigmoid(x)[:, :, None] * c + jnp.tanh(p * x)[:, :, None] * x[:, None, :],
}


def total(run: Any, *arguments: Any) -> Any:
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(run(*arguments)))


MODES = {
    "forward": lambda run: lambda *a: jax.jvp(run, a, a)[1],
    "reverse": lambda run: jax.grad(partial(total, run), (0, 1, 2)),
    "forward over reverse": lambda run: lambda *a: jax.jvp(jax.grad(partial(total, run), (0, 1, 2)), a, a)[1],
}
CASES = {f"{cell}, {mode}": (cell, mode) for cell in CELLS for mode in MODES}
TELLING = ["linear, forward", "clamped, forward over reverse", "matrix, forward"]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("cell", "mode"), variants(CASES, TELLING))
def test_tangents_are_cut_where_the_loop_cuts_them(cell: str, mode: str):
    def run(how: Any, p: Any, carry: Any, xs: Any) -> Any:
        def step(p: Any, c: Any, x: Any) -> tuple[Any, Any]:
            c = CELLS[cell](p, c, x)
            return c, jnp.einsum("bk,bkv->bv", x, c) if cell == "matrix" else c

        return rs.scan(step, p, carry, xs, truncate=5, **how)

    shape = (ROWS, 2, 2) if cell == "matrix" else (ROWS, 2)
    xs = normal(np.random.default_rng(0), (STEPS, ROWS, 2), jnp.float64)
    arguments = jnp.full((1, 2), 0.3), jnp.ones(shape), xs
    expected = jax.jit(MODES[mode](partial(run, {"engine": "lax"})))(*arguments)
    with rs.tuned_for("gpu"):
        actual = jax.jit(MODES[mode](partial(run, {"engine": "fission"})))(*arguments)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), actual, expected)
