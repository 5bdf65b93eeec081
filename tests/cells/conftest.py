"""What the tests of cells share: the configurations that every property is checked for, and how to run them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs


INPUT_SIZE = 3

CELLS = {
    "lstm": rs.cells.LSTM(4),
    "gru": rs.cells.GRU(4),
    "gru_reset_before": rs.cells.GRU(4, reset_after=False),
    "rnn_tanh": rs.cells.RNN(4),
    "rnn_relu": rs.cells.RNN(4, activation="relu"),
    "stack": rs.stack(rs.cells.LSTM(4), rs.cells.GRU(5)),
}


@dataclass(frozen=True)
class Case:
    """A cell, and what the tests do with it."""

    cell: Any

    def arguments(self, *, length: int = 7, batch: int = 3, seed: int = 0) -> tuple[Any, Any, Any]:
        """Random params, carry and xs of the widest dtype that is on. Biases and carries are not zero."""
        random = np.random.default_rng(seed)

        def fill(leaf: Any) -> jax.Array:
            return jnp.asarray(0.5 * random.normal(size=leaf.shape), jnp.result_type(float))

        x = jax.ShapeDtypeStruct((batch, INPUT_SIZE), jnp.float32)
        params = jax.eval_shape(lambda: self.cell.init(jax.random.key(0), INPUT_SIZE))
        carry = jax.eval_shape(self.cell.initial_carry, x)
        return jax.tree.map(fill, params), jax.tree.map(fill, carry), fill(np.empty((length, batch, INPUT_SIZE)))

    def scan(self, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        return rs.scan(self.cell, params, carry, xs, **options)

    @property
    def jitted(self) -> Callable[..., tuple[Any, Any]]:
        """`scan` under jit, the same function for all tests, so that each shape is compiled once."""
        return _jitted_scan(self.cell)

    def loop(self, params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        """What scan means: a Python loop of at least one step."""
        ys = []
        for x in xs:
            carry, y = self.cell(params, carry, x)
            ys.append(y)
        return carry, jnp.stack(ys)

    def gradients(self, run: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
        """What `run` returns, and the gradients of `loss` of it for params, carry and xs."""

        def loss_and_outputs(*arguments: Any) -> tuple[Any, Any]:
            outputs = run(*arguments)
            return self.loss(outputs), outputs

        gradients, outputs = jax.grad(loss_and_outputs, argnums=(0, 1, 2), has_aux=True)(*arguments)
        return outputs, gradients

    @staticmethod
    def loss(outputs: Any) -> jax.Array:
        """A loss that weighs every element of the outputs differently, and none linearly."""
        return sum(
            (jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape) * jnp.sin(leaf)).sum()
            for leaf in jax.tree.leaves(outputs)
        )


@cache
def _jitted_scan(cell: Any) -> Callable[..., tuple[Any, Any]]:
    return jax.jit(lambda params, carry, xs: rs.scan(cell, params, carry, xs))


@pytest.fixture(params=list(CELLS.values()), ids=list(CELLS))
def case(request: pytest.FixtureRequest) -> Case:
    """Every configuration of the cells in turn."""
    return Case(request.param)


@pytest.fixture
def case_of() -> Callable[[Any], Case]:
    """A case of one's own cell."""
    return Case


@pytest.fixture
def assert_trees_close() -> Callable[..., None]:
    """Compare pytrees: the same structure, shapes and dtypes, and values to the tolerance."""

    def compare(actual: Any, expected: Any, *, tolerance: float = 1e-12) -> None:
        assert jax.tree.structure(actual) == jax.tree.structure(expected)
        for (path, leaf), expected_leaf in zip(
            jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True
        ):
            place = jax.tree_util.keystr(path)
            assert leaf.shape == expected_leaf.shape, place
            assert leaf.dtype == expected_leaf.dtype, place
            np.testing.assert_allclose(leaf, expected_leaf, rtol=tolerance, atol=tolerance, err_msg=place)

    return compare
