"""What the tests of rewrites share."""

import os
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from drawn import normal


@cache
def random_of(test):
    """The random numbers of a test, the same in whatever order tests run."""
    return np.random.default_rng([*test.encode()])


def floats(*shape, dtype=jnp.float32):
    test = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)").removesuffix(" (setup)")
    return normal(random_of(test), shape, dtype)


def operations(graph):
    return [node.operation for node in graph.nodes]


def assert_same(rewritten, function, *arguments, rtol=1e-6):
    """Values, and gradients in all float arguments, are those of the function."""

    def total(run, *arguments):
        leaves = jax.tree.leaves(run(*arguments))
        return sum(jnp.sum(jnp.sin(leaf.astype(jnp.float32))) for leaf in leaves), leaves

    places = [place for place, leaf in enumerate(arguments) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    compute = jax.jit(
        jax.value_and_grad(total, argnums=[1 + place for place in places], has_aux=True), static_argnums=0
    )
    expected, actual = compute(function, *arguments), compute(rewritten.to_cell(), *arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.float32(a), np.float32(b), rtol, 1e-6), actual, expected)
