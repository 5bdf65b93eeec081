"""What does not depend on a value in the loop does not depend on it in a parallel form, and a select chooses."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from tiers import variants


STEPS, ROWS = 40, 3
RESETS = (jnp.arange(STEPS) % 9 == 5)[:, None] & (jnp.arange(ROWS) < 2)
CELLS = {
    "linear": lambda p, c, x: jax.nn.sigmoid(p * x) * c + x,
    "growing factors": lambda p, c, x: (1e4 + jnp.abs(p * x)) * c + jnp.where(x > 1, x, 0) * 0,
    "shrinking factors, difference": lambda p, c, x: x - c * 1e-9 / (1 + p * x * x),
    "clamped": lambda p, c, x: jnp.clip(c + p * x, -2, 3),
    "running maximum": lambda p, c, x: jnp.maximum(c + p, x),
}
OPTIONS = {
    "resets": {
        "reset": (jnp.arange(STEPS) % 9 == 5)[:, None] & (jnp.arange(ROWS) < 2),
        "reset_to": jnp.ones((ROWS, 2)),
        "memory": rs.Memory(chunk=STEPS),
    },
    "reversed, in chunks": {"reverse": True, "memory": rs.Memory(chunk=20)},
    # Short chunks run their steps one by one.
    "short chunks": {"memory": rs.Memory(chunk=16)},
    "lengths": {"seq_lengths": jnp.asarray([40, 23, 7]), "memory": rs.Memory(chunk=STEPS)},
}
# Before and after a reset, in the first row, and in a step that the last row does not have.
PLANTED = {"inf": (3, 0, jnp.inf), "NaN": (12, 1, jnp.nan), "overflow": (20, 2, 3e38), "-inf": (30, 0, -jnp.inf)}
FUNCTIONS = {
    "values": lambda f: f,
    "gradients": lambda f: jax.grad(lambda *a: summed(f(*a)), (0, 1, 2)),
    "tangents": lambda f: lambda *a: jax.jvp(f, a, a),
    "second order": lambda f: jax.grad(lambda *a: summed(jax.grad(lambda *a: summed(f(*a)), (0, 1, 2))(*a)), (0, 2)),
    "tangents of gradients": lambda f: lambda *a: jax.jvp(jax.grad(lambda *a: summed(f(*a)), (0, 2)), a, a)[1],
}


def summed(tree: Any) -> Any:
    """A loss that gives a value that is not finite no cotangent."""
    return sum(jnp.sum(jnp.where(jnp.isfinite(leaf), leaf, 0)) for leaf in jax.tree.leaves(tree))


def compare(cell: Any, function: str, carry: Any, xs: Any, options: dict[str, Any]) -> None:
    def run(engine: str, p: Any, carry: Any, xs: Any) -> Any:
        step = lambda p, c, x: (cell(p, c, x), c)  # noqa: E731
        others = {name: value for name, value in options.items() if name != "memory" or engine == "fission"}
        return rs.scan(step, p, carry, xs, engine=engine, **others)

    arguments = jnp.full(2, 0.7), carry, xs
    with rs.tuned_for("gpu"):
        actual, expected = (
            jax.jit(FUNCTIONS[function](partial(run, engine)))(*arguments) for engine in ("fission", "lax")
        )
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


CASES = {
    f"{cell}, {function}, {options}": (cell, function, options)
    for cell in CELLS
    for function in FUNCTIONS
    for options in OPTIONS
}
TELLING = [
    "linear, values, resets",
    "linear, gradients, reversed, in chunks",
    "linear, second order, resets",
    "linear, tangents of gradients, lengths",
    "growing factors, gradients, resets",
    "clamped, tangents, resets",
    "clamped, gradients, lengths",
    "running maximum, values, resets",
]


@pytest.mark.parametrize(("cell", "function", "options"), variants(CASES, TELLING))
@pytest.mark.parametrize("planted", variants([*PLANTED, "all"], ["all"]))
def test_planted_values_reach_what_they_reach_in_the_loop(cell: str, function: str, options: str, planted: str):
    xs = np.random.default_rng(0).normal(size=(STEPS, ROWS, 2)).astype("float32")
    for step, row, value in [PLANTED[planted]] if planted in PLANTED else PLANTED.values():
        xs[step, row, 1] = value
    compare(CELLS[cell], function, jnp.zeros((ROWS, 2)), jnp.asarray(xs), OPTIONS[options])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_growing_factors_over_zeros(function: str):
    """A product of factors overflows, and the carry is 0."""
    zeros = jnp.zeros((STEPS, ROWS, 2))
    compare(lambda p, c, x: 1e5 * p * c + x, function, zeros[0], zeros, {"memory": rs.Memory(chunk=STEPS)})


def test_other_elements_keep_their_bits():
    """A row beside one that is not finite has the values that it has alone."""
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(STEPS, ROWS, 2)), jnp.float32)
    memory = rs.Memory(chunk=STEPS)
    run = lambda xs: rs.scan(lambda _, c, x: (0.3 * c + x,) * 2, None, xs[0], xs, memory=memory)[1]  # noqa: E731
    with rs.tuned_for("gpu"):
        np.testing.assert_array_equal(run(xs.at[3, 1].set(jnp.inf))[:, ::2], run(xs)[:, ::2])


def test_a_maximum_that_begins_at_minus_infinity():
    """-inf is the maximum of nothing, and a gate that is closed."""
    xs, start = jnp.zeros((STEPS, ROWS)).at[4].set(-jnp.inf), jnp.full(ROWS, -jnp.inf)
    step = lambda c, x: (jnp.maximum(c + x, -3.0),) * 2  # noqa: E731
    with rs.tuned_for("gpu"):
        actual = rs.scan(lambda _, c, x: step(c, x), None, start, xs, memory=rs.Memory(chunk=STEPS))[1]
    np.testing.assert_array_equal(actual, jax.lax.scan(step, start, xs)[1])


@pytest.mark.core("recurrences in parallel")
def test_products_of_factors_of_float16_that_underflow():
    # 8 factors of 0.1 take a state of 6e4 to 6e-4. Their product, 1e-8, is 0 in float16.
    factors = np.ones((24, ROWS), np.float16)
    factors[:8] = 0.1

    def run(engine: str, state: Any, factors: Any) -> Any:
        step = lambda p, c, x: (x * c, jnp.log(c.astype(jnp.float32)))  # noqa: E731
        memory = rs.Memory(chunk=24) if engine == "fission" else None
        return rs.scan(step, None, state, factors, engine=engine, memory=memory)

    with rs.tuned_for("gpu"):
        actual, expected = (
            jax.jit(jax.value_and_grad(lambda *a, engine=engine: run(engine, *a)[1].sum(), (0, 1)))(
                jnp.full(ROWS, 6e4, jnp.float16), factors
            )
            for engine in ("fission", "lax")
        )
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.float64(one), np.float64(other), rtol=2e-2)
