"""A function with a derivative of its own, under `jit` and `vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan.engine.loops.calls import differentiate_as


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
