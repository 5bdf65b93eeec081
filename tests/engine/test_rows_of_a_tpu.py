"""The passes for a step that runs whole on a TPU: sums over rows are products, and vectors are repeated once."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from drawn import normal
from rnnscan.engine.passes.repeat_vectors import repeat_vectors
from rnnscan.engine.passes.sum_rows import sum_rows
from rnnscan.ir.program import evaluate, read
from rnnscan.ir.spec import check_program
from rnnscan.ir.trace import trace


def results_of(program, arrays):
    values = dict(zip([*program.invariant, *program.known], arrays, strict=True))
    evaluate(program.equations, values)
    return [read(atom, values) for atom in program.outputs]


def sums_of(function, *arrays):
    """A program of arrays that vary, whose results are summed over the steps."""
    program = trace(function, *arrays)
    return replace(program, summed=program.stacked, stacked=())


def names_of(program):
    return [equation.name for equation in program.equations]


SUMS = {
    "rows": ((5, 3), lambda x: [x.sum(0)]),
    "rows and a view": ((5, 3), lambda x: [x.sum(0)[None]]),
    "rows of rows": ((2, 5, 3), lambda x: [x.sum((0, 1))]),
    "leaves two axes": ((5, 2, 3), lambda x: [x.sum(0)]),
    "in both terms": ((5, 3), lambda x: [x.sum(0) + (x * x).sum(0)]),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_rows_is_a_product(name, dtype):
    shape, function = SUMS[name]
    x = normal(np.random.default_rng(0), shape, dtype)
    program = sums_of(function, x)
    rewritten = sum_rows(program)
    check_program(rewritten, set())
    assert "reduce_sum" not in names_of(rewritten)
    assert names_of(rewritten).count("dot_general") == names_of(program).count("reduce_sum")
    pairs = zip(results_of(rewritten, [x]), results_of(program, [x]), strict=True)
    for actual, expected in pairs:
        assert actual.dtype == expected.dtype
        pair = (np.asarray(leaf, np.float64) for leaf in (actual, expected))
        np.testing.assert_allclose(*pair, rtol=4 * float(jnp.finfo(dtype).eps), atol=8 * float(jnp.finfo(dtype).eps))


STAY = {
    "of columns": ((5, 3), jnp.float32, lambda x: [x.sum(1)]),
    "of everything": ((5, 3), jnp.float32, lambda x: [x.sum()]),
    "of one row": ((1, 3), jnp.float32, lambda x: [x.sum(0)]),
    "of integers": ((5, 3), jnp.int32, lambda x: [x.sum(0)]),
    "of complex numbers": ((5, 3), jnp.complex64, lambda x: [x.sum(0)]),
    "whose sum is not that of the result": ((5, 3), jnp.float32, lambda x: [jnp.tanh(x.sum(0))]),
}


@pytest.mark.parametrize("name", STAY)
def test_other_sums_stay(name):
    shape, dtype, function = STAY[name]
    program = sums_of(function, jnp.ones(shape, dtype))
    assert names_of(sum_rows(program)) == names_of(program)


def test_a_sum_that_is_not_added_up_over_the_steps_stays():
    program = trace(lambda x: [x.sum(0)], jnp.ones((5, 3)))
    assert names_of(sum_rows(program)) == ["reduce_sum"]


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_sum_of_rows_that_is_not_finite_spreads_to_no_other_column(value):
    x = jnp.ones((5, 3)).at[2, 1].set(value)
    (found,) = results_of(sum_rows(sums_of(lambda x: [x.sum(0)], x)), [x])
    np.testing.assert_array_equal(found, [5, value, 5])


def with_fixed(function, vector, x):
    program = trace(function, vector, x)
    return replace(program, invariant=program.known[:1], known=program.known[1:])


@pytest.mark.parametrize("shape", [(1, 3), (1, 1, 3)])
@pytest.mark.parametrize("operation", [lax.add, lax.sub, lax.mul, lax.div, lax.max, lax.min])
def test_a_fixed_vector_is_repeated_once(operation, shape):
    random = np.random.default_rng(0)
    vector, x = normal(random, shape, jnp.float32), normal(random, (*[4] * (len(shape) - 1), 3), jnp.float32)
    program = with_fixed(lambda vector, x: [operation(x, vector), operation(vector, x)], vector, x)
    rewritten = repeat_vectors(program)
    check_program(rewritten, set())
    assert len(rewritten.fixed - {*rewritten.invariant}) == 1
    for actual, expected in zip(*(results_of(one, [vector, x]) for one in (rewritten, program)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_other_operands_are_not_repeated():
    x = jnp.ones((4, 3))
    functions = [
        lambda vector, x: [x + vector[0, 0]],  # A number.
        lambda vector, x: [jnp.ones((1, 3)) * x[:1] + x],  # Not fixed.
        lambda vector, x: [x * jnp.float32(2)],
        lambda vector, x: [vector + vector, x],
    ]
    for function in functions:
        program = with_fixed(function, jnp.ones((1, 3)), x)
        assert names_of(repeat_vectors(program)) == names_of(program)
