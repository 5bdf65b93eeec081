"""An outer product is a multiplication, however it is written."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from drawn import normal
from matrix_states import SMALL, assert_equal, compiled
from rnnscan.engine.costs.heuristics import using
from rnnscan.engine.passes.outer_products import outer_products
from rnnscan.ir.program import evaluate
from rnnscan.ir.trace import trace
from steps import program_of


def values_of(program, arrays):
    values = dict(zip(program.inputs, arrays, strict=True))
    evaluate(program.equations, values)
    return [values[output] for output in program.outputs]


def dot(contracted, batch, dtype=None):
    return partial(lax.dot_general, dimension_numbers=(contracted, batch), preferred_element_type=dtype)


PRODUCTS = {
    "k @ v": ((5, 2, 3, 1), (5, 2, 1, 4), jnp.matmul),
    "no contraction": ((5, 3), (5, 4), partial(jnp.einsum, "nk,nv->nkv")),
    "no batch": ((3, 1), (1, 4), jnp.matmul),
    "one row": ((1, 3), (1, 4), dot(((0,), (0,)), ((), ()))),
    "batch axes within": ((3, 5, 1, 2), (2, 1, 4, 5), dot(((2,), (1,)), ((1, 3), (3, 0)))),
    "scaled rows": ((5,), (5, 4), dot(((), ()), ((0,), (0,)))),
    "two contracted axes": ((3, 1, 1), (1, 1, 4), dot(((1, 2), (1, 0)), ((), ()))),
    "added up in float32": ((3, 1), (1, 4), dot(((1,), (0,)), ((), ()), jnp.float32), jnp.bfloat16),
    "booleans": ((3,), (4,), partial(jnp.einsum, "k,v->kv"), bool),
    "rounded to bfloat16": ((3, 1), (1, 4), dot(((1,), (0,)), ((), ()), jnp.bfloat16)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_it_equals_the_product(name):
    left, right, product, *dtype = PRODUCTS[name]
    random = np.random.default_rng(0)
    arrays = [normal(random, shape, jnp.float32).astype(*(dtype or [jnp.float32])) for shape in (left, right)]
    program = trace(lambda *arrays: [product(*arrays)], *arrays)
    rewritten = outer_products(program)
    names = [[own.primitive.name for own in each.equations].count("dot_general") for each in (program, rewritten)]
    assert names == [1, 0]
    (expected,), (actual,) = (values_of(each, arrays) for each in (program, rewritten))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(actual, expected)


def test_other_products_stay():
    def step(matrix, carry, x):
        column = matrix[:1]  # The same at every step: its gradient is one product over steps and rows.
        return [carry[0] @ matrix + x[:, :1] @ column, x @ x.T]

    program = program_of(step, 1)
    assert outer_products(program).equations == program.equations


OUTER = {
    "k @ v": lambda k, v: k[..., :, None] @ v[..., None, :],
    "einsum nk,nv->nkv": partial(jnp.einsum, "nk,nv->nkv"),
    "einsum nki,niv->nkv": lambda k, v: jnp.einsum("nki,niv->nkv", k[..., :, None], v[..., None, :]),
    "einsum nv,nk->nkv": lambda k, v: jnp.einsum("nv,nk->nkv", v, k),
}


def attention(outer, _, state, x):
    """The step of xlstm-jax (`recurrent_step_fw`) without its normalizer."""
    query, key, value, forget = x
    state = jax.nn.sigmoid(forget)[..., None] * state + outer(key, value)
    return state, jnp.einsum("nk,nkv->nv", query, state)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OUTER)
def test_matrix_states_are_found_with_any_outer_product(name):
    random = np.random.default_rng(0)
    query, key = (jnp.asarray(random.normal(size=(21, 2, 3))) for _ in range(2))
    value, forget = (jnp.asarray(random.normal(size=(21, 2, size))) for size in (4, 1))
    state = jnp.asarray(random.normal(size=(2, 3, 4)))
    cell = partial(attention, OUTER[name])
    arguments = (state, (query, key, value, forget))
    with using(SMALL):
        assert rs.explain(cell, None, *arguments).states[""].startswith("in chunks of 4 steps")

        def run(engine):
            def loss(state, xs):
                last, ys = rs.scan(cell, None, state, xs, engine=engine)
                return jnp.sum(jnp.sin(last)) + jnp.sum(jnp.sin(ys)), (last, ys)

            return compiled(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*arguments)

        assert_equal(run("auto"), run("lax"))


def test_a_named_outer_product_is_kept():
    def cell(_, state, x):
        key, value = x
        added = rs.name(key[..., :, None] @ value[..., None, :], "added")
        state = jnp.tanh(state + added)
        return state, state[..., 0]

    arguments = (jnp.zeros((2, 3, 4)), (jnp.ones((5, 2, 3)), jnp.ones((5, 2, 4))))
    report = rs.memory_report(cell, None, *arguments)
    assert "added" in str(report)
