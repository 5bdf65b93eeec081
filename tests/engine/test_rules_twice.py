"""The rule of a `jax.custom_jvp` counts in second derivatives, as in `lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from fuzz.rules import sine_with_jvp


MEMORIES = {
    "no segments": rs.Memory(chunk=2),
    "segments": rs.Memory(segment=2, chunk=2),
    "recomputed names": rs.Memory(recompute=("gates",), segment=(3, 2)),
}


def cell(params, carry, x):
    carry = 0.9 * carry + sine_with_jvp(rs.name(params * x, "gates"))
    return carry, sine_with_jvp(carry)


def second(scan):
    """The tangents of a loss and its gradient. Without its rule the function has no derivative."""
    xs = jnp.linspace(0.1, 1.0, 10).reshape(5, 2)

    def loss(params):
        final, ys = scan(cell, params, jnp.zeros(2), xs)
        return jnp.sum(final**2) + jnp.sum(ys**2)

    params = jnp.asarray([0.7, 1.3])
    return jax.jvp(jax.value_and_grad(loss), (params,), (params,))[1]


def plain(cell, params, carry, xs):
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("outside", [lambda scan: scan, lambda scan: jax.checkpoint(scan, static_argnums=0)])
@pytest.mark.parametrize("name", MEMORIES)
def test_a_rule_counts_in_a_second_derivative(name, outside):
    def by_rnnscan(*arguments):
        return rs.scan(*arguments, memory=MEMORIES[name])

    results = second(outside(by_rnnscan))
    jax.tree.map(lambda got, expected: np.testing.assert_allclose(got, expected, 1e-10), results, second(plain))
