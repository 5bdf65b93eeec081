"""Leaves of a carry that only add up are sums over the steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from jaxprs import equations_of, is_loop, running
from rnnscan.engine.analysis.carried_sums import as_sums
from rnnscan.ir.program import Program
from rnnscan.ir.trace import trace


XS = jax.random.normal(jax.random.key(0), (23, 3, 4))
MATRIX = jax.random.normal(jax.random.key(1), (4, 4)) / 2


def summed(step, *types, carry):
    """The positions of the leaves of the carry that are sums, for a step of `(*carry, *x)`."""
    traced = trace(step, *types)
    program = Program(
        traced.equations,
        known=traced.known[carry:],
        carry=traced.known[:carry],
        new_carry=traced.stacked[:carry],
        stacked=traced.stacked[carry:],
    )
    left = as_sums(program)
    assert len(left.summed) == carry - len(left.carry)
    return [index for index, leaf in enumerate(program.carry) if leaf not in left.carry]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda total, other, x: (total + x, other * x), [0]),
        (lambda total, other, x: (x + total, other + total), [1]),
        (lambda total, other, x: (total + total, other + x), [1]),
        (lambda total, other, x: (total + x, other * x, total), []),
        (lambda total, other, x: (total - x, other + 1.0), []),
    ],
    ids=["a sum", "another leaf reads it", "twice itself", "a result reads it", "no sum of values"],
)
def test_what_is_a_sum(step, expected):
    of_step = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert summed(step, of_step, of_step, of_step, carry=2) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_16_bits_and_integers_are_added_step_by_step(dtype):
    of_step = jax.ShapeDtypeStruct((3,), dtype)
    assert summed(lambda total, x: (total + x,), of_step, of_step, carry=1) == []


def cell(matrix, carry, x):
    """A recurrent leaf, a sum of products and a sum in 16 bits."""
    hidden, products, narrow = carry
    hidden = jnp.tanh(hidden @ matrix + x)
    return (hidden, products + x.T @ hidden, narrow + hidden.astype(jnp.bfloat16)), hidden


def run(scan, matrix, xs, **options):
    start = jnp.zeros((3, 4)), jnp.ones((4, 4)), jnp.ones((3, 4), jnp.bfloat16)
    return scan(cell, matrix, start, xs, **options)


def plain(cell, params, carry, xs, reverse=False):
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs, reverse=reverse)


@pytest.mark.large_loops
@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_derivatives_are_those_of_a_plain_scan(reverse):
    def loss(scan, *given):
        (hidden, products, narrow), ys = run(scan, *given, reverse=reverse)
        return jnp.sum(jnp.sin(products)) + jnp.sum(hidden * narrow.astype(float)) + jnp.sum(ys**2)

    of_orders = [lambda loss: loss, jax.grad, lambda loss: lambda *given: jax.jvp(jax.grad(loss), given, given)[1]]
    for order in of_orders:
        found, expected = (jax.jit(order(partial(loss, scan)))(MATRIX, XS) for scan in (rs.scan, plain))
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
    found, expected = (jax.jit(partial(run, scan, reverse=reverse))(MATRIX, XS)[0][2] for scan in (rs.scan, plain))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.large_loops
def test_a_sum_of_products_is_one_product_of_a_chunk():
    gru = rs.cells.GRU(32)
    params, xs = gru.init(jax.random.key(2), input_size=24), jnp.ones((64, 4, 24))

    def gradient(params, xs):
        return jax.grad(lambda params: jnp.sum(rs.scan(gru, params, gru.initial_carry(xs[0]), xs)[1] ** 2))(params)

    traced = running(lambda *given: jax.jvp(gradient, given, given)[1])(params, xs)
    loops = [one for one in equations_of(traced.jaxpr) if is_loop(one)]
    innermost = [
        [inner for value in loop.params.values() if hasattr(value, "jaxpr") for inner in equations_of(value.jaxpr)]
        for loop in loops
    ]
    in_steps = [equation for body in innermost if not any(map(is_loop, body)) for equation in body]
    shapes = {equation.outvars[0].aval.shape for equation in in_steps if equation.primitive.name == "dot_general"}
    assert shapes
    assert not any(sorted(shape) in ([24, 96], [32, 96]) for shape in shapes), "a gradient of a kernel at each step"
