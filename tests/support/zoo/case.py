"""A cell, and what tests do with it: random arguments, runs, and gradients of a loss that weighs everything."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from drawn import normal


INPUT_SIZE = 3


@dataclass(frozen=True)
class Case:
    """A cell to test.

    Attributes:
        cell: the cell.
        features: the shape of one row of one step's input: its features last, spatial axes before them.
        rows_alone: whether a row may be run without an axis for the batch.
    """

    cell: Any
    features: tuple[int, ...] = (INPUT_SIZE,)
    rows_alone: bool = True

    def arguments(self, *, length: int = 7, batch: int = 3, seed: int = 0) -> tuple[Any, Any, Any]:
        """Random params, carry and xs of the widest dtype that is on. Biases and carries are not zero."""
        random = np.random.default_rng(seed)

        def fill(leaf: Any) -> jax.Array:
            if jnp.issubdtype(leaf.dtype, jnp.integer):
                return jnp.asarray(random.integers(1, 5, size=leaf.shape, dtype=leaf.dtype))
            if leaf.dtype == bool:
                return jnp.asarray(random.random(leaf.shape) < 0.5)
            if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                values = 0.5 * random.normal(size=leaf.shape) + 0.5j * random.normal(size=leaf.shape)
                return jnp.asarray(values.astype(jnp.result_type(complex)))
            return normal(random, leaf.shape, jnp.result_type(float), 0.5)

        x = jax.ShapeDtypeStruct((batch, *self.features), jnp.float32)
        params = jax.eval_shape(lambda: self.cell.init(jax.random.key(0), self.features[-1]))
        carry = jax.eval_shape(self.cell.initial_carry, x)
        return jax.tree.map(fill, params), jax.tree.map(fill, carry), fill(jnp.empty((length, batch, *self.features)))

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
        return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *ys)

    def gradients(self, run: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
        """What `run` returns, and the gradients of `loss` of it for params, carry and xs."""

        def loss_and_outputs(*arguments: Any) -> tuple[Any, Any]:
            outputs = run(*arguments)
            return self.loss(outputs), outputs

        gradients, outputs = jax.grad(loss_and_outputs, argnums=(0, 1, 2), has_aux=True, allow_int=True)(*arguments)
        return outputs, gradients

    @staticmethod
    def loss(outputs: Any) -> jax.Array:
        """A loss that weighs every element of the outputs differently, and none linearly."""
        total = jnp.zeros(())
        for leaf in jax.tree.leaves(outputs):
            parts = [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else [leaf]
            for part in parts:
                if jnp.issubdtype(part.dtype, jnp.floating):
                    total = total + (_weights(part) * jnp.sin(part)).sum()
        return total


def _weights(part: jax.Array) -> Any:
    """Of another value for each element; a constant, so that nothing of it is traced, where the shape is known."""
    known = all(isinstance(size, int) for size in part.shape)
    numbers = np.arange(part.size) if known else jnp.arange(part.size, dtype=jnp.result_type(float))
    return (np if known else jnp).cos(numbers).reshape(part.shape).astype(part.dtype)


@cache
def _jitted_scan(cell: Any) -> Callable[..., tuple[Any, Any]]:
    return jax.jit(lambda params, carry, xs: rs.scan(cell, params, carry, xs))


def assert_trees_close(actual: Any, expected: Any, *, tolerance: float = 1e-12) -> None:
    """The same structure, shapes and dtypes, and values to the tolerance."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, leaf), expected_leaf in zip(
        jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True
    ):
        place = jax.tree_util.keystr(path)
        assert leaf.shape == expected_leaf.shape, place
        assert leaf.dtype == expected_leaf.dtype, place
        if leaf.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(leaf, expected_leaf, rtol=tolerance, atol=tolerance, err_msg=place)
