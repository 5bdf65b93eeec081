"""A carry leaf that no cotangent reaches has none, so no zero is multiplied by a derivative that is not finite.

JAX's `lax.scan` does the same by dead code elimination. Plain `lax.scan` is the reference.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import Memory


MEMORIES = [None, Memory(), Memory(recompute="all"), Memory(segment=4), Memory(segment=(4, 2)), Memory(chunk=2)]
MEMORY_IDS = ["None", "default", "all", "segment", "nested", "chunk"]
XS = jnp.linspace(0.1, 1.0, 6)


def beside_nan(p, carry, x):
    """The second leaf is NaN from the first step on, and nothing that is returned reads it."""
    a, b = carry
    return (jnp.sin(a * p) + x, jnp.log(a - 100.0) * b), a


def running_norm(p, carry, x):
    """The norm has an infinite derivative at zero. A loss that returns it as an auxiliary value does not read it."""
    h, norm = carry
    h = jnp.tanh(h * p + x)
    return (h, jnp.sqrt(norm**2 + (x - x) ** 2)), h


def chained(p, carry, x):
    """The NaN is two leaves away from the one that is read: a feeds b, and b feeds c."""
    a, b, c = carry
    return (jnp.cos(a * p) + x, jnp.sqrt(-1.0 - a**2) + b, b * c), a


def selected(p, carry, x):
    """A predicate has no tangent, so the leaf in it has no cotangent."""
    a, b = carry
    return (jnp.where(b > 0, a * p, jnp.sin(a * p)) + x, jnp.log(a - 100.0) * b), a


STEPS = {
    "beside_nan": (beside_nan, (0.3, 0.3)),
    "running_norm": (running_norm, (0.3, 0.0)),
    "chained": (chained, (0.3, 0.2, 0.1)),
    "selected": (selected, (0.3, 0.3)),
}


def plain(cell, p, carry, xs):
    return jax.lax.scan(lambda carry, x: cell(p, carry, x), carry, xs)


def loss_of(scan, cell):
    def loss(p, carry, xs):
        final, ys = scan(cell, p, carry, xs)
        return final[0].sum() + (ys**2).sum()

    return loss


@pytest.mark.parametrize("memory", MEMORIES, ids=MEMORY_IDS)
@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_those_of_plain(name, memory):
    cell, carry = STEPS[name]
    carry = tuple(map(jnp.float32, carry))
    gradient = jax.grad(loss_of(lambda *arguments: rs.scan(*arguments, memory=memory), cell), (0, 1, 2))
    expected = jax.grad(loss_of(plain, cell), (0, 1, 2))(jnp.float32(0.9), carry, XS)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
    results = jax.jit(gradient)(jnp.float32(0.9), carry, XS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), results, expected)


ORDERS = {
    "second order": lambda loss: jax.grad(lambda p, carry, xs: jax.grad(loss)(p, carry, xs).sum()),
    "forward over reverse": lambda loss: lambda p, *rest: jax.jvp(jax.grad(loss), (p, *rest), (1.0, *_zeros(rest)))[1],
    "rows": lambda loss: lambda p, carry, xs: jax.vmap(jax.grad(loss), (0, None, None))(jnp.stack([p, p]), carry, xs),
    "checkpoint": lambda loss: jax.grad(jax.checkpoint(loss)),
    "jit within": lambda loss: jax.grad(jax.jit(loss)),
}


def _zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)


@pytest.mark.core("values that are not finite")
@pytest.mark.parametrize("memory", [Memory(), Memory(segment=2)], ids=["default", "segment"])
@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_transformations(order, memory):
    cell, carry = STEPS["beside_nan"]
    carry = tuple(map(jnp.float32, carry))
    scan = lambda *arguments: rs.scan(*arguments, memory=memory)  # noqa: E731
    results, expected = (ORDERS[order](loss_of(run, cell))(jnp.float32(0.9), carry, XS) for run in (scan, plain))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(results, expected, rtol=1e-5)


@pytest.mark.core("values that are not finite")
@pytest.mark.parametrize("segment", [None, 2])
def test_while_net(segment):
    """The condition reads a leaf that has no cotangent, and another is NaN."""

    def body(p, carry):
        count, a, b = carry
        return count + 1, jnp.sin(a * p) + 0.1, jnp.log(a - 100.0) * b

    def loss(p):
        start = (jnp.int32(0), jnp.float32(0.3), jnp.float32(0.3))
        memory = Memory(segment=segment)
        return rs.while_net(lambda p, carry: carry[0] < 5, body, start, params=p, max_steps=8, memory=memory)[0][1]

    def plain_loss(p):
        a = jnp.float32(0.3)
        for _ in range(5):
            a = jnp.sin(a * p) + 0.1
        return a

    np.testing.assert_allclose(jax.grad(loss)(0.9), jax.grad(plain_loss)(0.9), rtol=1e-5)
    if segment is None:
        np.testing.assert_allclose(jax.grad(jax.grad(loss))(0.9), jax.grad(jax.grad(plain_loss))(0.9), rtol=1e-5)


def test_a_scan_around_it_carries_no_zeros():
    """A scan of scans: the dead leaf of the outer carry is one of the inner carry."""

    def outer(scan):
        def loss(p):
            def step(carry, x):
                return scan(beside_nan, p, carry, x)

            carry, ys = jax.lax.scan(step, (jnp.float32(0.3), jnp.float32(0.3)), XS.reshape(3, 2))
            return carry[0] + ys.sum()

        return loss

    expected = jax.grad(outer(plain))(jnp.float32(0.9))
    assert np.isfinite(expected)
    for memory in (Memory(), Memory(recompute="all")):
        scan = lambda *arguments, memory=memory: rs.scan(*arguments, memory=memory)  # noqa: E731
        np.testing.assert_allclose(jax.grad(outer(scan))(jnp.float32(0.9)), expected, rtol=1e-5)
