"""Sums of many terms: a weight that one step uses 400 times, and float16 sums over 10,000 steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.ir.jaxprs import all_equations
from tiers import variants


def plain(cell, params, carry, xs):
    return lax.scan(partial(cell, params), carry, xs)


def using_it(times):
    def cell(weight, hidden, x):
        for _ in range(times):
            hidden = jnp.tanh(hidden @ weight + x)
        return hidden, hidden

    return cell


def loss(scan, times):
    return lambda weight, xs: scan(using_it(times), weight, jnp.zeros((2, 2)), xs)[1].sum()


@pytest.mark.parametrize("uses", variants([40, 400], [40]))
def test_a_weight_that_is_used_often_in_a_step(uses):
    weight, xs = jnp.array([[0.6, -0.3], [0.2, 0.5]]), jnp.linspace(-1.0, 1.0, 12).reshape(3, 2, 2)
    ours, expected = (jax.jit(jax.grad(loss(scan, uses)))(weight, xs) for scan in (rs.scan, plain))
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


@pytest.mark.parametrize("derivative", [lambda run: run, jax.grad], ids=["value", "gradient"])
def test_equations_grow_with_the_uses_of_a_weight_as_in_a_plain_scan(derivative):
    def equations(scan, times):
        traced = jax.make_jaxpr(derivative(loss(scan, times)))(jnp.eye(2), jnp.ones((3, 2, 2)))
        return sum(1 for _ in all_equations(traced.jaxpr))

    # With jax 0.10.2 a gradient has 12 equations for each use, and 15 by the engine.
    by_engine = equations(rs.scan, 60) - equations(rs.scan, 20)
    by_jax = equations(plain, 60) - equations(plain, 20)
    assert by_engine <= 1.5 * by_jax


STEPS, ROWS = 10_000, 4
MEMORIES = {"default": rs.Memory(), "recompute": rs.Memory(recompute="all"), "segments": rs.Memory(segment="sqrt")}


@pytest.mark.parametrize("memory", MEMORIES)
def test_float16_gradients_of_many_steps_and_rows(memory):
    """Added up in float16, terms of 2 ** -9 would no longer change a sum of 16."""

    def cell(params, hidden, x):
        hidden = hidden / 2 + params["bias"] + x @ params["kernel"]
        return hidden, hidden

    random = np.random.default_rng(0)
    xs = random.uniform(0.5, 1.0, (STEPS, ROWS, 2)).astype(np.float16)
    params = {"bias": jnp.zeros(3, jnp.float16), "kernel": jnp.zeros((2, 3), jnp.float16)}

    def scaled(params):
        ys = rs.scan(cell, params, jnp.zeros((ROWS, 3), jnp.float16), xs, memory=MEMORIES[memory])[1]
        return jnp.sum(ys.astype(jnp.float32)) / 1024

    gradients = jax.jit(jax.grad(scaled))(params)
    # The cotangents of the carry are (2 - 2 ** -steps to go) / 1024, which float16 rounds to 2 / 1024 early on.
    cotangents = (2 - 0.5 ** np.arange(STEPS, dtype=np.float64)[::-1]) / 1024
    bias = ROWS * cotangents.sum()
    kernel = np.einsum("t,tnd->d", cotangents, xs.astype(np.float64))
    # The 100 segments of these steps are added up in float16: 0.6 % less.
    rounding = 1e-2 if memory == "segments" else 2 * np.finfo(np.float16).eps
    np.testing.assert_allclose(np.float64(gradients["bias"]), np.full(3, bias), rtol=rounding)
    np.testing.assert_allclose(np.float64(gradients["kernel"]), np.repeat(kernel[:, None], 3, 1), rtol=rounding)
