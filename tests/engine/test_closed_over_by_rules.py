"""A `jax.custom_vjp` whose function or rule closes over arrays: as in `lax.scan`, which gives these no tangent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import Memory
from tiers import variants


SIZE = 6
TABLE = jnp.linspace(-0.5, 0.7, SIZE * SIZE).reshape(SIZE, SIZE)
WEIGHT = jnp.linspace(0.3, -0.4, SIZE * SIZE).reshape(SIZE, SIZE)
START, XS = jnp.zeros((2, SIZE)), jnp.linspace(-1.0, 1.0, 7 * 2 * SIZE).reshape(7, 2, SIZE)
MEMORIES = {"default": Memory(), "all": Memory("all"), "None": None, "segments": Memory(segment=3)}


def with_rule(table, report=None):
    """A function of a table, with a derivative that is not its own. The backward rule may report its cotangent."""
    function = jax.custom_vjp(lambda x: jnp.tanh(x @ table))

    def backward(x, cotangent):
        if report is not None:
            jax.debug.callback(report, cotangent)
        return (0.7 * jnp.cos(x) * (cotangent @ table.T),)

    function.defvjp(lambda x: (jnp.tanh(x @ table), x), backward)
    return function


WITHIN = {
    "step": lambda f: f,
    "jit": jax.jit,
    "cond": lambda f: lambda x: jax.lax.cond(x.sum() < 99.0, f, jnp.sin, x),
    "loop": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "scan": lambda f: lambda x: rs.scan(lambda _, c, __: (f(c), None), None, x, None, length=2)[0],
}


def plain(cell, params, carry, xs, **_):
    return jax.lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)


def gradient(scan, function, memory=None):
    def cell(weight, carry, x):
        carry = function(carry @ weight + x)
        return carry, carry

    return jax.jit(jax.grad(lambda weight: (scan(cell, weight, START, XS, memory=memory)[1] ** 2).sum()))(WEIGHT)


@pytest.mark.parametrize("table", [TABLE, np.asarray(TABLE)], ids=["jax", "numpy"])
@pytest.mark.parametrize(
    ("within", "memory"),
    variants(
        {f"{within}, {memory}": (within, memory) for within in WITHIN for memory in MEMORIES},
        ["step, default", "cond, segments", "scan, all"],
    ),
)
def test_gradients_are_those_of_plain(within, memory, table):
    function = WITHIN[within](with_rule(table))
    expected = gradient(plain, function)
    np.testing.assert_allclose(gradient(rs.scan, function, MEMORIES[memory]), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("within", ["step", "jit", "cond"])
def test_the_effects_of_its_backward_rule_happen_once_a_step(within):
    seen = []
    function = WITHIN[within](with_rule(TABLE, seen.append))
    for scan, memory in ((plain, None), (rs.scan, Memory()), (rs.scan, None)):
        seen.clear()
        jax.block_until_ready(gradient(scan, function, memory))
        jax.effects_barrier()
        assert len(seen) == len(XS)


def test_in_a_loop_that_stops():
    function = with_rule(TABLE)

    def loss(weight, run):
        return (run(lambda weight, carry: (function(carry[0] @ weight + 1.0), carry[1] + 1), weight) ** 2).sum()

    def by_while_net(step, weight):
        return rs.while_net(lambda _, carry: carry[1] < 4, step, (START, 0), params=weight, max_steps=6)[0][0]

    def by_hand(step, weight):
        carry = (START, 0)
        for _ in range(4):
            carry = step(weight, carry)
        return carry[0]

    expected, found = (jax.grad(lambda weight, run=run: loss(weight, run))(WEIGHT) for run in (by_hand, by_while_net))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
