"""A product of decays is rounded about once, and has the derivative of a product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan.engine.loops.products_of_decays import Product


def product(decays):
    total = Product.of(decays[0])
    for decay in decays[1:]:
        total = total.times(Product.of(decay))
    return total.value


@pytest.mark.parametrize("least", [0.5, 0.99])
def test_a_product_of_many_is_the_nearest_number(least):
    decays = np.random.default_rng(0).uniform(least, 1, (64, 500)).astype(np.float32)
    exact = np.prod(decays.astype(np.float64), 0)
    half_a_unit = np.spacing(exact.astype(np.float32)) / 2
    error = np.abs(np.float64(jax.jit(product)(decays)) - exact)
    assert np.all(error <= 1.01 * half_a_unit)
    assert np.max(np.abs(np.prod(decays, 0) - exact) / half_a_unit) > 5, "rounded each time"


def test_a_decay_of_zero_forgets_all():
    decays = np.full((5, 2), 0.7, np.float32)
    decays[2, 0] = 0
    np.testing.assert_array_equal(product(jnp.asarray(decays))[0], 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_derivative_is_that_of_a_product(dtype):
    with jax.enable_x64(True):
        decays = jnp.asarray(np.random.default_rng(1).uniform(0.5, 1, 6), dtype)
        found, expected = (jax.jit(jax.value_and_grad(function))(decays) for function in (product, jnp.prod))
        rtol = 8 * float(jnp.finfo(dtype).eps)
        for leaf, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.float64(leaf), np.float64(wanted), rtol=rtol)
