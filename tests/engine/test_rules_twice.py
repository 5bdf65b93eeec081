"""The rules of `jax.custom_jvp` and `jax.custom_vjp` count in second derivatives, as in `lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from fuzz.rules import sine_with_jvp
from tiers import variants


MEMORIES = {
    "no segments": rs.Memory(chunk=2),
    "segments": rs.Memory(segment=2, chunk=2),
    "recomputed names": rs.Memory(recompute=("gates",), segment=(3, 2)),
}


@jax.custom_vjp
def sine_with_vjp(x):
    return jnp.sin(x)


# The value of the rule, its derivative and the cotangent differ on purpose: each shows which of them is used.
sine_with_vjp.defvjp(lambda x: (jnp.sin(1.1 * x), x), lambda x, cotangent: (cotangent * jnp.cos(x) * x,))


def noise(key, x, number, count):
    return jnp.sin(x) * number + 0.1 * jax.random.normal(key, x.shape) + count


noisy = jax.custom_vjp(noise)


def noisy_forward(key, x, number, count):
    return noise(key, 1.1 * x, number, count), (key, x)


def noisy_backward(residuals, cotangent):
    key, x = residuals
    return None, cotangent * jnp.cos(x) + 0.1 * jax.random.normal(key, x.shape), jnp.sum(cotangent), None


noisy.defvjp(noisy_forward, noisy_backward)


def of_other_operands(x):
    """A key, a Python number, and an integer that depends on the input, beside the operand with a tangent."""
    return noisy(jax.random.key(3), x, 0.5, (x.sum() > 1).astype(int))


def of_a_number(x):
    """The rules' operands are a literal and an integer, and have no tangent."""
    return sine_with_vjp(0.3) * x + sine_with_vjp(jnp.arange(2).astype(float))


def by_branch(x):
    return lax.cond(x.sum() > 0.5, sine_with_vjp, jnp.cos, x)


def by_inner_scan(x):
    return lax.scan(lambda x, _: (sine_with_vjp(x), None), x, length=2)[0]


RULES = {
    "custom_jvp": sine_with_jvp,
    "custom_vjp": sine_with_vjp,
    "custom_vjp of a key and numbers": of_other_operands,
    "custom_vjp of a number": of_a_number,
    "custom_vjp of jit": jax.jit(sine_with_vjp),
    "custom_vjp in a branch": by_branch,
    "custom_vjp in an inner scan": by_inner_scan,
}


def second(scan, sine):
    """A loss and its gradient, and their tangents. Without its rule the function has no derivative."""

    def cell(params, carry, x):
        carry = 0.9 * carry + sine(rs.name(params * x, "gates"))
        return carry, sine(carry)

    xs = jnp.linspace(0.1, 1.0, 10).reshape(5, 2)

    def loss(params):
        final, ys = scan(cell, params, jnp.zeros(2), xs)
        return jnp.sum(final**2) + jnp.sum(ys**2)

    params = jnp.asarray([0.7, 1.3])
    return jax.jvp(jax.value_and_grad(loss), (params,), (params,))


def plain(cell, params, carry, xs):
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)


OUTSIDE = {"alone": lambda scan: scan, "checkpoint": lambda scan: jax.checkpoint(scan, static_argnums=0)}
EVERY = {
    f"{rule}, {name}, {outside}": (rule, name, OUTSIDE[outside])
    for rule in RULES
    for name in MEMORIES
    for outside in OUTSIDE
}
QUICK = [f"{rule}, {name}, checkpoint" for rule in ("custom_jvp", "custom_vjp") for name in MEMORIES]
QUICK += [f"{rule}, no segments, alone" for rule in ("custom_jvp", "custom_vjp")]
QUICK += [f"custom_vjp of a key and numbers, {name}, alone" for name in MEMORIES]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("rule", "name", "outside"), variants(EVERY, QUICK))
def test_a_rule_counts_in_a_second_derivative(rule, name, outside):
    def by_rnnscan(*arguments):
        return rs.scan(*arguments, memory=MEMORIES[name])

    results, expected = second(outside(by_rnnscan), RULES[rule]), second(plain, RULES[rule])
    jax.tree.map(lambda got, expected: np.testing.assert_allclose(got, expected, 1e-10), results, expected)
