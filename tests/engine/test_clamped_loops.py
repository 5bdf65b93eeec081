"""Loops that shift and clip a carry run as associative scans on accelerators."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from jaxprs import running, trips_of_loops
from tiers import variants


# Each maps (m, shift, low, high) to the next m.
LOOPS = {
    "max-plus": lambda m, shift, low, high: jnp.maximum(m + shift, low),
    "min-plus": lambda m, shift, low, high: jnp.minimum(high, shift + m),
    "running maximum": lambda m, shift, low, high: jnp.maximum(m, low),
    "sum that stays positive": lambda m, shift, low, high: jnp.maximum(m - shift, 0),
    "both limits": lambda m, shift, low, high: jnp.minimum(jnp.maximum(m + shift, low), high),
    "limits that cross": lambda m, shift, low, high: jnp.maximum(jnp.minimum(m + shift, low), high) - 0.5,
    "clamp": lambda m, shift, low, high: lax.clamp(-0.4, m + shift, 0.6) + low,
    "selected": lambda m, shift, low, high: jnp.where(shift > 0, jnp.maximum(m + shift, low), high),
    "selected, without limits": lambda m, shift, low, high: jnp.where(shift > 0, m + shift, m),
}
# Short chunks run their steps one by one.
STEPS, LONG = 40, {"memory": rs.Memory(chunk=40)}
OPTIONS = {
    "plain": LONG,
    "reversed, in chunks": {"reverse": True, "memory": rs.Memory(chunk=20)},
    "short chunks": {"memory": rs.Memory(chunk=16)},
    "resets": {"reset": jnp.arange(STEPS) % 4 == 2, "reset_to": jnp.full((2, 3), 0.7), **LONG},
    "lengths, truncated": {"seq_lengths": jnp.asarray([STEPS, 23]), "truncate": 4, **LONG},
}
CASES = {f"{loop}, {name}": (loop, name) for loop in LOOPS for name in OPTIONS}
TELLING = [
    "max-plus, plain",
    "limits that cross, reversed, in chunks",
    "selected, resets",
    "clamp, lengths, truncated",
    "both limits, short chunks",
]


def cell(loop, params, m, x):
    shift, low, high = jnp.split(x * params, 3, axis=-1)
    new = LOOPS[loop](m, shift, low, high)
    return new, jnp.sin(new) * jnp.tanh(m)


def arguments(ties=False):
    random = np.random.default_rng(0)
    xs = random.integers(-2, 3, size=(STEPS, 2, 9)) / 2 if ties else random.normal(size=(STEPS, 2, 9))
    return jnp.ones(9) if ties else jnp.asarray(random.normal(size=9)), jnp.zeros((2, 3)) + 0.5, jnp.asarray(xs)


def loss(loop, options, *given):
    final, ys = rs.scan(partial(cell, loop), *given, **options)
    return jnp.sum(jnp.cos(final)) + jnp.sum(ys**2)


def engine_and_plain(loop, options, function, given):
    """A function of the loss under a GPU's choices, and by plain autodiff."""
    others = {name: value for name, value in options.items() if name != "memory"}
    plain = jax.jit(function(partial(loss, loop, {**others, "memory": None, "engine": "lax"})))(*given)
    with rs.tuned_for("gpu"):
        return jax.jit(function(partial(loss, loop, options)))(*given), plain


def loops_over_steps(loop):
    """The loops over single steps that the engine runs forward, but where a value is not finite."""
    with rs.tuned_for("gpu"):
        jaxpr = running(partial(loss, loop, OPTIONS["reversed, in chunks"]))(*arguments()).jaxpr
    return len(trips_of_loops(jaxpr)) - 1  # One is over chunks.


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("loop", "name"), variants(CASES, TELLING))
def test_values_and_gradients_are_those_of_plain_autodiff(loop, name):
    gradient = partial(jax.value_and_grad, argnums=(0, 1, 2))
    results = engine_and_plain(loop, OPTIONS[name], gradient, arguments())
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-12), *results)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loop", variants(list(LOOPS), ["both limits"]))
def test_values_that_equal_a_limit_have_the_gradients_of_the_loop(loop):
    gradient = partial(jax.grad, argnums=(0, 1, 2))
    results = engine_and_plain(loop, {}, gradient, arguments(ties=True))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-12), *results)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loop", variants(list(LOOPS), ["max-plus"]))
def test_gradients_of_gradients(loop):
    def second(function):
        first = jax.grad(function, argnums=(0, 2))
        return jax.grad(lambda *given: sum(jnp.sum(jnp.cos(leaf)) for leaf in jax.tree.leaves(first(*given))), (0, 2))

    results = engine_and_plain(loop, {}, second, arguments())
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-9), *results)


@pytest.mark.parametrize("loop", variants(list(LOOPS), ["max-plus", "selected"]))
def test_no_loop_over_the_steps_is_left(loop):
    assert loops_over_steps(loop) == 0


@pytest.mark.parametrize(
    "loop",
    [
        lambda m, shift, low, high: jnp.maximum(0.5 * m + shift, low),
        lambda m, shift, low, high: jnp.maximum(m + shift, m),
        lambda m, shift, low, high: jnp.maximum(shift - m, low),
    ],
)
def test_other_loops_run_step_by_step(monkeypatch, loop):
    monkeypatch.setitem(LOOPS, "other", loop)
    assert loops_over_steps("other") > 0


def test_limits_and_shifts_of_infinity():
    """-inf is a gate that is closed, and the maximum of nothing."""
    params, carry, xs = arguments()
    given = jnp.abs(params), jnp.full_like(carry, -jnp.inf), jnp.where(xs > 1, -jnp.inf, xs)

    def final(**options):
        return rs.scan(partial(cell, "max-plus"), *given, **options)[0]

    with rs.tuned_for("gpu"):
        np.testing.assert_allclose(final(), final(engine="lax"), rtol=1e-6)
