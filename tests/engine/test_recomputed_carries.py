"""Carries that are recomputed from the start of a chunk: the vjp reads those before its step, or after it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from drawn import normal
from jaxprs import equations_of
from tiers import variants


LENGTH, ROWS, WIDTH = 7, 2, 3


def cache(params, carry, x):
    """A table of what was written so far. Its derivative does not need the table before a step."""
    table, position = carry
    table = lax.dynamic_update_slice_in_dim(table, (x @ params)[:, None], position, 1)
    return (table, position + 1), jnp.sum(jnp.sin(table), axis=1)


def two_caches(params, carry, x):
    """The second table takes what the first one had before the step, and nothing else reads that."""
    first, second, position = carry
    second = 0.5 * second + first
    first = lax.dynamic_update_slice_in_dim(first, (x @ params)[:, None], position, 1)
    return (first, second, position + 1), jnp.sum(jnp.sin(first) + jnp.cos(second), axis=1)


def read_before_and_after(params, carry, x):
    """An average whose derivative reads the average before a step and after it."""
    (average,) = carry
    new = jax.nn.sigmoid(x @ params) * average + x
    return (new,), jnp.sin(new)


def _tables(random, count):
    tables = [normal(random, (ROWS, LENGTH, WIDTH), jnp.float64) for _ in range(count)]
    return *tables, jnp.int32(0)


CELLS = {
    "cache": (cache, partial(_tables, count=1)),
    "two caches": (two_caches, partial(_tables, count=2)),
    "average": (read_before_and_after, lambda random: (normal(random, (ROWS, WIDTH), jnp.float64),)),
}
OPTIONS = {
    "plain": {},
    "a remainder": {"memory": rs.Memory(chunk=3)},
    "reversed": {"memory": rs.Memory("all", chunk=2), "reverse": True},
    "segments": {"memory": rs.Memory(segment=4, chunk=2)},
}


def _arguments(name):
    random = np.random.default_rng(0)
    params = normal(random, (WIDTH, WIDTH), jnp.float64)
    return params, CELLS[name][1](random), normal(random, (LENGTH, ROWS, WIDTH), jnp.float64)


def _gradient(name, **options):
    def loss(*arguments):
        results = jax.tree.leaves(rs.scan(CELLS[name][0], *arguments, **options))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in results if jnp.issubdtype(leaf.dtype, jnp.floating))

    return jax.value_and_grad(loss, argnums=(0, 1, 2), allow_int=True)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "options"),
    variants(
        {f"{name}, {one}": (name, OPTIONS[one]) for name in CELLS for one in OPTIONS},
        ["cache, a remainder", "cache, reversed", "two caches, segments", "average, a remainder"],
    ),
)
def test_values_and_gradients_are_those_of_plain_autodiff(name, options):
    arguments = _arguments(name)
    found = jax.jit(_gradient(name, **options))(*arguments)
    expected = jax.jit(_gradient(name, **options | {"memory": None}))(*arguments)
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if leaf.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_a_table_is_written_once_to_recompute_it():
    """Once forward, once to recompute it, and once in its cotangent; a vjp that reads it has the new one."""
    program = jax.make_jaxpr(_gradient("cache"))(*_arguments("cache"))
    written = [one for one in equations_of(program.jaxpr) if one.primitive.name == "dynamic_update_slice"]
    assert len(written) == 3
