"""Steps that write a matrix state in unusual ways: in chunkwise form where they have it, and always as the loop."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from matrix_states import SMALL, assert_equal, compiled
from rnnscan.engine.costs.heuristics import using


STEPS, KEYS, VALUES = 21, 4, 5
# One row of them would be one kernel.
CHOICES = replace(SMALL, one_kernel=False)


def state_after(kind, matrix, state, x):
    _, key, value, decay, reset = x
    written = key[:, None] * value[None]
    if kind == "a reset to what it decays towards":
        return decay * jnp.where(reset, matrix, state) + (1 - decay) * matrix + written
    if kind == "a matrix in several terms":
        return decay * state + decay * matrix + matrix - 0.5 * matrix + written
    if kind == "a decay of jnp.arange":
        return jnp.exp(-jnp.arange(float(KEYS)))[:, None] * state + written
    if kind == "a key of jnp.arange":
        return decay * state + jnp.arange(float(KEYS))[:, None] * value[None]
    if kind == "a quotient of integers":
        return decay * state + lax_div(key, value).astype(state.dtype)
    if kind == "bytes that wrap around":
        return decay * state + (as_bytes(key)[:, None] * as_bytes(value)[None]).astype(state.dtype)
    if kind == "a product in half precision":
        halves = [(6 * leaf).astype(jnp.float16) for leaf in (key, value)]
        return decay * state + (halves[0][:, None] * halves[1][None]).astype(state.dtype)
    if kind == "a decay alone":
        return decay * state
    assert kind == "a reset to a matrix alone"
    return jnp.where(reset, matrix, decay * state)


def lax_div(key, value):
    products = (9 * key).astype(jnp.int32)[:, None] * (9 * value).astype(jnp.int32)[None]
    return jax.lax.div(products, jnp.int32(2))


def as_bytes(leaf):
    return jnp.abs(99 * leaf).astype(jnp.uint8)


def arguments():
    random = np.random.default_rng(0)
    query, key, value = (jnp.asarray(random.normal(size=(STEPS, size))) for size in (KEYS, KEYS, VALUES))
    decay, reset = jnp.asarray(random.uniform(0.3, 0.9, STEPS)), jnp.arange(STEPS) % 6 == 4
    matrix, state = (jnp.asarray(random.normal(size=(KEYS, VALUES))) for _ in range(2))
    return matrix, state, (query, key, value, decay, reset)


def both(cell, given):
    """What `rs.explain` says, and the results and gradients with the engine and by the loop."""

    def run(engine):
        def loss(*arguments):
            final, ys = rs.scan(cell, *arguments, engine=engine)
            of_carry = sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(final))
            return (ys**2).sum() + of_carry, (final, ys)

        return compiled(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True, allow_int=True))(*given)

    return [*rs.explain(cell, *given).states.values()], run("auto"), run("lax")


CHUNKWISE = {
    "a reset to what it decays towards": True,
    "a matrix in several terms": True,
    "a decay of jnp.arange": True,
    "a key of jnp.arange": True,
    "a quotient of integers": False,
    "bytes that wrap around": False,
    "a product in half precision": False,
    "a decay alone": False,
    "a reset to a matrix alone": False,
}


@pytest.mark.core("recurrences in parallel")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", CHUNKWISE)
def test_the_state_is_that_of_the_loop(kind):
    def cell(matrix, state, x):
        state = state_after(kind, matrix, state, x)
        return state, x[0] @ state

    with using(CHOICES):
        texts, found, expected = both(cell, arguments())
    assert any(text.startswith("in chunks of 4 steps") for text in texts) == CHUNKWISE[kind], texts
    assert_equal(found, expected)


@pytest.mark.core("recurrences in parallel")
@pytest.mark.usefixtures("x64")
def test_a_read_of_a_state_beside_a_matrix_that_its_update_has_too():
    def cell(matrix, state, x):
        query, key, value, decay, _ = x
        state = decay * state + matrix + key[:, None] * value[None]
        return state, query @ (state + matrix)

    with using(CHOICES):
        texts, found, expected = both(cell, arguments())
    assert [text[:20] for text in texts] == ["in chunks of 4 steps"]
    assert_equal(found, expected)


def delayed(kind, leaf, x):
    """The query, key, value and decay of a step that has one of them from the step before, and the next leaf."""
    query, key, value, decay, reset = x
    if kind == "the last query":
        return (leaf, key, value, decay), query
    if kind == "a sum of keys":
        return (query, leaf, value, decay), 0.5 * leaf + key
    if kind == "a recurrent key":
        return (query, leaf, value, decay), jnp.tanh(leaf * decay + key)
    if kind == "a sum of values":
        return (query, key, leaf, decay), decay * leaf + value
    if kind == "the last decay":
        return (query, key, value, leaf[:, None]), jnp.broadcast_to(decay, leaf.shape)
    assert kind == "the last reset"
    return (query, key, value, jnp.where(leaf, 0, decay)), reset


@pytest.mark.core("recurrences in parallel")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "kind",
    ["the last query", "a sum of keys", "a recurrent key", "a sum of values", "the last decay", "the last reset"],
)
def test_a_factor_of_a_state_that_is_another_leaf_of_the_carry(kind):
    def cell(matrix, carry, x):
        (query, key, value, decay), leaf = delayed(kind, carry[1], x)
        state = decay * carry[0] + key[:, None] * value[None] + 0.1 * matrix
        return (state, leaf), query @ state

    matrix, state, xs = arguments()
    leaf = {"a sum of values": value_like(VALUES), "the last reset": jnp.bool_(False)}.get(kind, value_like(KEYS))
    with using(CHOICES):
        texts, found, expected = both(cell, (matrix, (state, leaf), xs))
    assert any(text.startswith("in chunks of 4 steps") for text in texts), texts
    assert_equal(found, expected)


def value_like(size):
    return jnp.asarray(np.random.default_rng(1).uniform(0.2, 0.8, size))


@pytest.mark.core("recurrences in parallel")
def test_products_of_bfloat16_are_those_of_a_state_of_float32():
    # XLA computes them in float32 in a loop, too, unless it is told to round them.
    random = np.random.default_rng(0)
    query, key, value = (random.normal(size=(STEPS, size)).astype(jnp.bfloat16) for size in (KEYS, KEYS, VALUES))

    def cell(_, state, x):
        query, key, value = x
        state = 0.5 * state + (key[:, None] * value[None]).astype(jnp.float32)
        return state, jnp.einsum("k,kv->v", query, state)

    def run(state, xs):
        final, ys = rs.scan(cell, None, state, xs)
        return final.sum() + ys.sum(), (final, ys)

    state, xs = jnp.zeros((KEYS, VALUES), jnp.float32), (query, key, value)
    with using(CHOICES):
        assert next(iter(rs.explain(cell, None, state, xs).states.values())).startswith("in chunks of 4 steps")
        _, (final, ys) = compiled(jax.value_and_grad(run, has_aux=True))(state, xs)[0]
    last, reads = np.zeros((KEYS, VALUES)), []
    for query, key, value in zip(*(np.float64(leaf) for leaf in xs), strict=True):
        last = 0.5 * last + np.outer(key, value)
        reads.append(query @ last)
    np.testing.assert_allclose(final, last, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(ys, np.stack(reads), rtol=2e-6, atol=5e-6)
