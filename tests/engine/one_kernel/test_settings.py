"""Small steps under settings of JAX, and with values that the rewrites know nothing of: as in plain `lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs


MATRICES = jax.random.normal(jax.random.key(1), (9, 3, 3))
PLACES = jnp.arange(9) % 3


def run(step, xs, memory):
    """The outputs, and the gradient by the parameter."""

    def loss(p):
        ys = rs.scan(lambda p, c, x: (c, step(p, x)), p, jnp.float32(0), xs, memory=memory)[1]
        return (1.0 * ys).sum(), ys

    (_, ys), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.float32(0.8))
    return ys, gradient


STEPS = {
    "inv": (lambda p, x: jnp.linalg.inv(p * x), MATRICES),
    "solve": (lambda p, x: jnp.linalg.solve(p * x, jnp.ones((3, 1), jnp.float32)), MATRICES),
    "slogdet": (lambda p, x: jnp.linalg.slogdet(p * x)[1], MATRICES),
    "read": (lambda p, x: p * x[0][x[1], x[1]], (MATRICES, PLACES)),
    "read rows": (lambda p, x: p * x[0][x[1][None]], (MATRICES, PLACES)),
    "write": (lambda p, x: x[0].at[x[1], x[1]].set(p), (MATRICES, PLACES)),
    "add": (lambda p, x: x[0].at[x[1], x[1]].add(p), (MATRICES, PLACES)),
    "qr": (lambda p, x: jnp.linalg.qr(p * x)[1], MATRICES),
    "along": (lambda p, x: jnp.take_along_axis(p * x, jnp.argsort(x, 1), 1), MATRICES),
}


@pytest.mark.parametrize("name", STEPS)
def test_ranks_are_broadcast_by_hand(name):
    with jax.numpy_rank_promotion("raise"):
        found, expected = (run(*STEPS[name], memory) for memory in (rs.Memory(), None))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_no_dtype_is_promoted(name):
    with jax.numpy_dtype_promotion("strict"), jax.enable_x64(True):
        found, expected = (run(*STEPS[name], memory) for memory in (rs.Memory(), None))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_nothing_moves_to_the_device(name):
    step, xs = STEPS[name]
    run_it = jax.jit(jax.grad(lambda p, xs: rs.scan(lambda p, c, x: (c, step(p, x)), p, jnp.zeros(()), xs)[1].sum()))
    p = jnp.float32(0.8)
    expected = jax.grad(lambda p: jax.vmap(lambda x: step(p, x))(xs).sum())(p)
    with jax.transfer_guard("disallow"):
        found = run_it(p, xs)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


def by_products(x):
    a = x.astype("float64")
    return jnp.tanh(a.T @ a).astype("float32")


@pytest.mark.parametrize("function", [by_products, lambda x: jnp.sort(x.astype("float64"), 0).astype("float32")])
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory("all"), rs.Memory(segment=4)], ids=str)
def test_float64_within_a_step(function, memory):
    def outputs(scan):
        def cell(p, c, x):
            with jax.enable_x64(True):
                y = function(p * x)
            return c + y, y

        return scan(cell, jnp.float32(0.8), jnp.zeros((3, 3)), MATRICES)[1]

    plain = lambda cell, p, c, xs: lax.scan(lambda c, x: cell(p, c, x), c, xs)  # noqa: E731
    own = lambda *arguments: rs.scan(*arguments, memory=memory)  # noqa: E731
    np.testing.assert_allclose(outputs(own), outputs(plain), rtol=1e-6)
