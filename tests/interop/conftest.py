"""What the tests of conversions share: nets with random parameters, and how to run and compare them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo.case
from drawn import normal


INPUT_SIZE = 3


@pytest.fixture
def random_params() -> Callable[..., Any]:
    """Parameters of a net that are random throughout, biases as well."""

    def make(net: Any, *, input_size: int = INPUT_SIZE, seed: int = 0, dtype: Any = None) -> Any:
        random = np.random.default_rng(seed)
        shapes = jax.eval_shape(lambda: net.init(jax.random.key(0), input_size))
        return jax.tree.map(lambda leaf: normal(random, leaf.shape, dtype or jnp.result_type(float), 0.5), shapes)

    return make


@pytest.fixture
def assert_equal() -> Callable[..., None]:
    """The same structure, shapes, dtypes and values, bit for bit."""

    def check(actual: Any, expected: Any) -> None:
        assert jax.tree.structure(actual) == jax.tree.structure(expected)
        for (path, leaf), other in zip(
            jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True
        ):
            place = jax.tree_util.keystr(path)
            assert leaf.dtype == other.dtype, place
            assert leaf.shape == other.shape, place
            assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes(), place

    return check


@pytest.fixture
def assert_trees_close() -> Callable[..., None]:
    """Compare pytrees: the same structure, shapes and dtypes, and values to the tolerance."""
    return zoo.case.assert_trees_close
