"""A function with a derivative of its own, under `jit` and `vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

from rnnscan.engine.loops.calls import differentiate_as, or_exact


pytestmark = pytest.mark.core("rows")

TABLE = np.linspace(0.5, 1.5, 12).reshape(3, 4)


def function(x):
    return {"wide": jnp.sin(x) * jnp.asarray(TABLE), "alone": jnp.cos(jnp.asarray(TABLE[0]))}


def test_a_function_may_hold_constants():
    """They are constants of its jaxpr, which is lowered in place."""
    call = differentiate_as(function, function)
    x = jnp.arange(4.0)
    jax.tree.map(np.testing.assert_allclose, jax.jit(call)(x), function(x))
    slopes, expected = (jax.jit(jax.jacrev(f))(x) for f in (call, function))
    jax.tree.map(lambda own, other: np.testing.assert_allclose(own, other, rtol=1e-6), slopes, expected)


def test_results_that_no_row_reaches_are_not_mapped():
    call = differentiate_as(function, function)
    rows = jnp.arange(8.0).reshape(2, 4)
    results = jax.vmap(jax.jit(call), out_axes={"wide": 0, "alone": None})(rows)
    jax.tree.map(np.testing.assert_allclose, results, jax.vmap(function, out_axes={"wide": 0, "alone": None})(rows))


def cumulative(start, rows):
    """Products over steps in parallel, and whether each is right."""
    after = start * jnp.cumprod(rows, 0)
    return [after, after[-1]], [jnp.all(jnp.isfinite(after), 0)] * 2


def one_by_one(start, rows):
    last, after = jax.lax.scan(lambda carry, row: (jnp.where(row == 0, row, carry * row),) * 2, start, rows)
    return [after, last]


FINITE = jnp.asarray([[2.0, 0.5], [3.0, 1.5], [0.25, 2.0]])
# The product of the first steps overflows, and the last one resets it.
OVERFLOWING = jnp.asarray([[1e30, 0.5], [1e30, 1.5], [0.0, 2.0]])


def of_call(function):
    def total(start, rows):
        after, last = function(start, rows)
        return jnp.sum(jnp.sin(last)) + jnp.sum(jnp.where(jnp.isfinite(after), after, 0) ** 2 * 1e-3)

    return total


def rows_of(total):
    return lambda start, rows: jax.vmap(total, (None, 0))(start, jnp.stack([rows, 0.5 * rows]))


CALL_ORDERS = {
    "value": lambda total: total,
    "jvp": lambda total: lambda *given: jax.jvp(total, given, given),
    "grad": lambda total: jax.grad(total, (0, 1)),
    "grad of one": lambda total: jax.grad(total, 1),
    "hessian": lambda total: jax.hessian(total, 1),
    "jvp of grad": lambda total: lambda *given: jax.jvp(jax.grad(total, (0, 1)), given, given),
    "grad of jvp": lambda total: jax.grad(lambda *given: jax.jvp(total, given, given)[1]),
    "vmap of grad": lambda total: rows_of(jax.grad(total, (0, 1))),
    "grad of vmap": lambda total: jax.grad(lambda *given: jnp.sum(rows_of(total)(*given)), (0, 1)),
    "grad of vmap of jit": lambda total: jax.grad(lambda *given: jnp.sum(rows_of(jax.jit(total))(*given)), (0, 1)),
    "vmap of jvp": lambda total: rows_of(lambda *given: jax.jvp(total, given, given)[1]),
    "checkpoint": lambda total: jax.grad(jax.checkpoint(total), (0, 1)),
    "linearize": lambda total: lambda *given: jax.linearize(total, *given)[1](*given),
}


@pytest.mark.parametrize("order", CALL_ORDERS)
@pytest.mark.parametrize("rows", [FINITE, OVERFLOWING], ids=["finite", "overflowing"])
def test_a_parallel_form_is_the_loop_in_every_order(order, rows):
    given = jnp.asarray([1.0, 2.0]), rows
    call = of_call(or_exact(cumulative, one_by_one, one_by_one))
    found, expected = (jax.jit(CALL_ORDERS[order](total))(*given) for total in (call, of_call(one_by_one)))
    for leaf, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("keeps_values", [False, True])
def test_operands_of_every_kind(keeps_values):
    """Python numbers, integers, keys and zeros; results that nothing reads."""

    def reference(key, count, x, unread):
        return jax.random.normal(key, x.shape) * x**2 * count, unread * 2, jax.random.split(key)

    def function(key, count, x, unread):
        return jax.random.normal(key, x.shape) * x * x * count, unread + unread, jax.random.split(key)

    call = differentiate_as(reference, function, keeps_values=keeps_values)
    key, x = jax.random.key(0), jnp.asarray([1.0, -2.0, 3.0])

    def total(function):
        return lambda x: jnp.sum(function(key, 3, x, 4.0)[0])

    for order in (lambda f: f, jax.grad, lambda f: jax.grad(jax.checkpoint(f)), lambda f: jax.hessian(f)):
        for jit in (lambda f: f, jax.jit):
            found, expected = (jit(order(total(each)))(x) for each in (call, reference))
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    rows = jax.vmap(lambda key, x: call(key, 3, x, 4.0))(jax.random.split(key, 2), jnp.stack([x, 2 * x]))
    expected = jax.vmap(lambda key, x: reference(key, 3, x, 4.0))(jax.random.split(key, 2), jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(rows[0], expected[0], rtol=1e-5)
    np.testing.assert_array_equal(*(jax.random.key_data(results[2]) for results in (rows, expected)))


def test_what_nothing_reads_is_no_operand():
    def both(x, y):
        return jnp.sin(x), jnp.cos(y)

    call = differentiate_as(both, both)
    closed = jax.make_jaxpr(lambda x, y: call(x, y)[0])(1.0, 2.0)
    (equation,) = partial_eval.dce_jaxpr(closed.jaxpr, [True])[0].eqns
    assert [len(part) for part in (equation.invars, equation.outvars)] == [1, 1]
    assert [len(part.eqns) for part in (equation.params["call_jaxpr"].jaxpr,)] == [1]
    assert len(equation.params["derivative"].reference.jaxpr.eqns) == 1
