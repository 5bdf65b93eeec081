"""Powers with a half in the exponent are computed by roots, and equal to powers."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from jaxprs import running
from rnnscan.engine.passes.half_powers import half_powers
from rnnscan.ir.program import evaluate
from rnnscan.ir.trace import trace
from tiers import variants


def names(program):
    return [equation.primitive.name for equation in program.equations]


def by_roots(x, exponent):
    program = half_powers(trace(lambda x: [jax.lax.pow(x, jnp.asarray(exponent, x.dtype))], x))
    assert "pow" not in names(program)
    values = dict(zip(program.known, [x], strict=True))
    evaluate(program.equations, values)
    return values[program.stacked[0]]


EXPONENTS = [sign * (whole + 0.5) for whole in range(5) for sign in (1, -1)]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_range_is_that_of_the_power(exponent, dtype):
    with jax.enable_x64(True):
        limits = np.finfo(dtype)
        with np.errstate(all="ignore"):
            whole_range = np.geomspace(limits.tiny, limits.max, 200, dtype=dtype)
            x = np.concatenate([whole_range, [0, np.inf, np.nan, -1, 1, 4]]).astype(dtype)
            expected = x**exponent
            # XLA's functions take subnormal numbers for zeros, on some CPUs.
            expected = np.where(abs(expected) < limits.tiny, 0, expected)
        found = np.asarray(by_roots(jnp.asarray(x), exponent))
        found = np.where(abs(found) < limits.tiny, 0, found)
        np.testing.assert_allclose(found, expected, rtol=8 * limits.eps)


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -4.0, 1.0, 4.0, 1e-30, 1e30]
DERIVATIVES = {
    "value": lambda f: f,
    "forward": lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1],
    "reverse": lambda f: lambda x: jax.vjp(f, x)[1](jnp.ones_like(x))[0],
}
ORDERS = [
    ("value",),
    ("forward",),
    ("reverse",),
    ("forward", "forward"),
    ("reverse", "reverse"),
    ("forward", "reverse"),
]


@pytest.mark.parametrize("exponent", [sign * (whole + 0.5) for whole in range(4) for sign in (1, -1)])
def test_values_and_derivatives_at_the_ends_of_the_range(exponent):
    """As powers: of the roots' own derivatives some are NaN at 0 and infinity.

    Without subnormal numbers: XLA's power of 1e-40 is 4e22 in one program and inf in another.
    """

    def by_scan(x):
        return rs.scan(lambda _, carry, x: (carry, x**exponent), None, jnp.zeros(()), x, memory=rs.Memory())[1]

    x = jnp.asarray(SPECIAL, jnp.float32)
    for order in ORDERS:
        functions = by_scan, lambda x: x**exponent
        actual, expected = (reduce(lambda f, name: DERIVATIVES[name](f), order, one)(x) for one in functions)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, err_msg=f"{order}")
        if order == ("value",):
            is_number = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(expected)[is_number])


# The derivative of the last one has the exponent -5.5.
@pytest.mark.parametrize("exponent", variants(EXPONENTS[:-1], [-1.5, 2.5]))
def test_gradients_are_those_of_plain_autodiff(exponent):
    def attraction(masses, carry, push):
        place, speed = carry
        between = place[None] - place[:, None]
        force = jnp.einsum("ij,ijd->id", masses * (jnp.sum(between**2, -1) + 0.5) ** exponent, between)
        speed = speed + 0.1 * force + push
        return (place + 0.1 * speed, speed), jnp.sum(speed**2, -1)

    def gradients(memory, *arguments):
        def loss(*arguments):
            carry, ys = rs.scan(attraction, *arguments, memory=memory)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((carry, ys)))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))

    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        arguments = (
            normal(random, (5,), float, scale=0.01),
            tuple(normal(random, (5, 3), float, scale=0.3) for _ in range(2)),
            normal(random, (12, 5, 3), float, scale=0.1),
        )
        own, plain = (gradients(memory, *arguments) for memory in (rs.Memory(), None))
        for leaf, expected in zip(*map(jax.tree.leaves, (own(*arguments), plain(*arguments))), strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=1e-10, atol=1e-11)
        assert " pow " in str(plain.trace(*arguments).jaxpr)
        assert " pow " not in str(running(own)(*arguments))


@pytest.mark.parametrize(
    ("exponent", "dtype"), [(5.5, "float32"), (0.25, "float32"), (2.0, "float32"), (1.5, "bfloat16"), (1.5, "float16")]
)
def test_other_powers_stay(exponent, dtype):
    x = jax.ShapeDtypeStruct((3,), dtype)
    program = trace(lambda x: [jax.lax.pow(x, jnp.asarray(exponent, dtype))], x)
    assert names(half_powers(program)) == names(program)


def test_an_exponent_that_is_no_number_stays():
    x = jax.ShapeDtypeStruct((3,), "float32")
    for program in (trace(lambda x, y: [x**y], x, x), trace(lambda x: [x ** jnp.array([0.5, 1.5, 2.5])], x)):
        assert names(half_powers(program)) == ["pow"]


@pytest.mark.parametrize("transformed", [jax.jit, jax.grad, jax.vmap], ids=lambda one: one.__name__)
def test_a_traced_exponent_that_is_closed_over_stays(transformed):
    found = []

    def of(exponent):
        program = trace(lambda x: [jax.lax.pow(x, exponent)], jax.ShapeDtypeStruct((3,), "float32"))
        found.extend(names(half_powers(program)))
        return exponent

    transformed(of)(jnp.ones(2) if transformed is jax.vmap else 1.5)
    assert found == ["pow"]
