"""A sum of a matrix times a vector is a product, as the derivative of an outer product written as a product is."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from drawn import normal
from jaxprs import equations_of, is_loop, running
from rnnscan.engine import passes
from rnnscan.engine.costs.heuristics import BACKENDS, using
from rnnscan.engine.costs.machine import CPU
from rnnscan.engine.passes.contract_sums import contract_sums
from rnnscan.ir.program import evaluate
from rnnscan.ir.trace import trace


def names(program):
    return [equation.primitive.name for equation in program.equations]


def values_of(program, arrays):
    values = dict(zip(program.inputs, arrays, strict=True))
    evaluate(program.equations, values)
    return [values[output] for output in program.outputs]


def drawn(*shapes, dtype=jnp.float32):
    random = np.random.default_rng(0)
    return [normal(random, shape, jnp.float32).astype(dtype) for shape in shapes]


def repeated(vector, matrix, *places):
    """A vector with the axes of a matrix, all of the sizes that these have."""
    return lax.broadcast_in_dim(vector, matrix.shape, places)


SUMS = {
    "of rows": ((32,), (32, 40), lambda k, g: (k[:, None] * g).sum(0)),
    "of columns": ((40,), (32, 40), lambda v, g: (g * v[None]).sum(1)),
    "of a batch's rows": ((3, 2, 32), (3, 2, 32, 40), lambda k, g: (k[..., None] * g).sum(2)),
    "of a batch's columns": ((3, 2, 40), (3, 2, 32, 40), lambda v, g: (v[..., None, :] * g).sum(-1)),
    "of an operand with axes of size 1": ((3, 1, 40), (3, 32, 40), lambda v, g: (v * g).sum(2)),
    "of a batch of one": ((1, 32), (1, 32, 40), lambda k, g: (k[..., None] * g).sum(1)),
    "of an operand in full": ((3, 40), (3, 32, 40), lambda v, g: (repeated(v, g, 0, 2) * g).sum(2)),
    "of two axes": ((3, 8, 5), (3, 40, 8, 5), lambda v, g: (v[:, None] * g).sum((2, 3))),
    "of an axis before two": ((3, 8), (3, 8, 5, 40), lambda k, g: (k[..., None, None] * g).sum(1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SUMS)
def test_it_equals_the_sum(name, dtype):
    *shapes, function = SUMS[name]
    with jax.enable_x64(dtype == "float64"):
        arrays = drawn(*shapes, dtype=dtype)
        program = trace(lambda *arrays: [function(*arrays)], *arrays)
        rewritten = contract_sums(program, CPU)
        assert ("dot_general" in names(rewritten), "reduce_sum" in names(rewritten)) == (True, False)
        (expected,), (actual,) = (values_of(each, arrays) for each in (program, rewritten))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


STAY = {
    "few elements": ((8,), (8, 8), lambda k, g: (k[:, None] * g).sum(0)),
    "a matrix that XLA makes within the sum": ((32,), (32, 40), lambda k, g: (k[:, None] * jnp.sin(g)).sum(0)),
    "a product that something else reads": ((32,), (32, 40), lambda k, g: [(each := k[:, None] * g), each.sum(0)]),
    "two matrices": ((32, 40), (32, 40), lambda k, g: (k * g).sum(0)),
    "a number": ((), (32, 40), lambda k, g: (k * g).sum(0)),
    "an axis without the vector's": ((32,), (32, 40), lambda k, g: (k[:, None] * g).sum(1)),
    "all axes": ((32,), (32, 40), lambda k, g: (k[:, None] * g).sum()),
    "a matrix to transpose": ((40,), (3, 40, 32), lambda v, g: (v[None, :, None] * g).sum(1)),
    "batch axes that come last": ((32, 3), (32, 40, 3), lambda k, g: (k[:, None] * g).sum(0)),
    "16 bits": ((32,), (32, 40), lambda k, g: (k[:, None] * g).sum(0), jnp.bfloat16),
    "integers": ((32,), (32, 40), lambda k, g: (k[:, None] * g).sum(0), jnp.int32),
}


@pytest.mark.parametrize("name", STAY)
def test_other_sums_stay(name):
    *shapes, function, dtype = STAY[name] if len(STAY[name]) == 4 else (*STAY[name], jnp.float32)
    program = trace(lambda *arrays: jax.tree.leaves(function(*arrays)), *drawn(*shapes, dtype=dtype))
    rewritten = contract_sums(program, CPU)
    assert names(rewritten) == names(program)


def test_a_sum_keeps_its_precision_where_products_have_less():
    arrays = drawn((32,), (32, 40))
    with jax.default_matmul_precision("bfloat16"):
        program = contract_sums(trace(lambda k, g: [(k[:, None] * g).sum(0)], *arrays), CPU)
    (product,) = (each for each in program.equations if each.name == "dot_general")
    assert {*product.params["precision"]} == {lax.Precision.HIGHEST}


def test_only_a_cpu_has_such_products():
    assert [platform for platform, each in BACKENDS.items() if each.contracts_sums] == ["cpu"]
    every = [{getattr(run, "func", run).__name__ for run in passes.backward(each)} for each in BACKENDS.values()]
    assert ["contract_sums" in each for each in every] == [True, False, False]


def delta_rule(_, state, x):
    """What a key reads is replaced: the gradient of its outer product is a product of a matrix with two vectors."""
    query, key, value = x
    state = state + key[..., :, None] * (value - jnp.einsum("nk,nkv->nv", key, state))[..., None, :]
    return state, jnp.einsum("nk,nkv->nv", query, state)


def loss(cell, engine, state, xs):
    last, ys = rs.scan(cell, None, state, xs, engine=engine)
    return jnp.sum(jnp.sin(last)) + jnp.sum(jnp.sin(ys))


def arguments(keys=32, values=40):
    state, *xs = drawn((2, keys, values), (20, 2, keys), (20, 2, keys), (20, 2, values))
    return state, tuple(x / 8 for x in xs)


def test_the_loop_of_a_delta_rule_sums_no_matrix():
    """XLA for a CPU would write both of its broadcast vectors as matrices first: 1.2 of the training time."""
    with using(BACKENDS["cpu"]):
        jaxpr = running(jax.grad(partial(loss, delta_rule, "auto"), (0, 1)))(*arguments()).jaxpr
    loops = [each for each in equations_of(jaxpr) if is_loop(each)]
    reduced = [
        each.invars[0].aval.shape
        for loop in loops
        for body in loop.params.values()
        if hasattr(body, "jaxpr")
        for each in equations_of(body.jaxpr)
        if each.primitive.name == "reduce_sum"
    ]
    assert loops
    assert reduced == []


@pytest.mark.usefixtures("x64")
def test_its_gradients_are_those_of_lax_scan():
    double = jax.tree.map(lambda leaf: leaf.astype("float64"), arguments())
    with using(BACKENDS["cpu"]):
        run, plain = (jax.value_and_grad(partial(loss, delta_rule, engine), (0, 1)) for engine in ("auto", "lax"))
        expected, actual = jax.jit(plain)(*double), jax.jit(run)(*double)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), actual, expected)
