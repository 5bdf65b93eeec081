"""A use of `lax.scan`: a function over time, its arguments, and its loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


# (cell, params, carry, xs, *, length=None, reverse=False) -> (carry, ys)
Scan = Callable[..., tuple[Any, Any]]
Cell = Callable[[Any, Any, Any], tuple[Any, Any]]
# (scan, params, carry, xs) -> a pytree with the last carry and the outputs of all steps
Run = Callable[[Scan, Any, Any, Any], Any]

# The least and the largest value of a size, both included.
Range = tuple[int, int]
# By the name of a size. The others are counts of features.
RANGES: Mapping[str, Range] = {"steps": (8, 8192), "rows": (1, 256), "heads": (1, 16)}
FEATURES: Range = (1, 1024)


@dataclass(frozen=True)
class Problem:
    """A use at given sizes.

    Attributes:
        run: runs it with a scan.
        params: the parameters.
        carry: the carry before the first step.
        xs: the inputs, or None.
        by_chunks: the textbook chunkwise form: the same results without a scan over steps. None if there is none.
    """

    run: Run
    params: Any
    carry: Any
    xs: Any
    by_chunks: Callable[[Any, Any, Any], Any] | None = None

    def loss(self, scan: Scan) -> Callable[..., Array]:
        """The loss by a scan, as a function of `split_arguments()`."""
        return self._loss(lambda *arguments: self.run(scan, *arguments))

    def chunkwise_loss(self) -> Callable[..., Array] | None:
        """The loss by the chunkwise form."""
        return None if self.by_chunks is None else self._loss(self.by_chunks)

    def split_arguments(self) -> tuple[Any, Any]:
        """Params, carry and inputs: the floating leaves, which get gradients, and the others. None fills the gaps."""
        arguments = (self.params, self.carry, self.xs)
        floats = jax.tree.map(lambda leaf: leaf if _is_float(leaf) else None, arguments)
        others = jax.tree.map(lambda leaf: None if _is_float(leaf) else leaf, arguments)
        return floats, others

    def _loss(self, run: Callable[[Any, Any, Any], Any]) -> Callable[..., Array]:
        def loss(floats: Any, others: Any) -> Array:
            joined = jax.tree.map(
                lambda one, other: other if one is None else one, floats, others, is_leaf=lambda leaf: leaf is None
            )
            return mean_squares(run(*joined))

        return loss


@dataclass(frozen=True)
class Use:
    """A use of `lax.scan`.

    Attributes:
        title: what it is.
        make: `make(draw, **sizes)` makes the problem.
        sizes: the sizes of the benchmark.
        tiny: the sizes of the tests.
        tolerance: the largest difference of a loss or gradient from plain autodiff, relative to its norm.
        long: whether the bars of the chunkwise form hold for it.
        ranges: the ranges of sizes that differ from `RANGES`.
    """

    title: str
    make: Callable[..., Problem]
    sizes: Mapping[str, Any]
    tiny: Mapping[str, Any]
    tolerance: float = 1e-4
    long: bool = False
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def problem(self) -> Problem:
        """The problem of the benchmark."""
        return self.make(Draw(), **self.sizes)

    @property
    def description(self) -> str:
        """The title and the sizes."""
        return f"{self.title}: {sizes_in_words(self.sizes)}"

    @property
    def size_ranges(self) -> dict[str, Range]:
        """The range of each size. Options, such as a dtype, have none."""
        return ranges_of(self.sizes, self.ranges)


def ranges_of(sizes: Mapping[str, Any], ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The range of each size that is a number, from `ranges`, or else from `RANGES`."""
    known = {**RANGES, **ranges}
    return {name: known.get(name, FEATURES) for name, value in sizes.items() if type(value) is int}


def sizes_in_words(sizes: Mapping[str, Any]) -> str:
    """The sizes that are numbers."""
    return ", ".join(f"{name} {value:,}" for name, value in sizes.items() if type(value) is int)


class Draw:
    """Random arrays in JAX's default floating dtype, the same in every process."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Array:
        """Normal numbers."""
        return jnp.asarray(scale * self._random.normal(size=shape), float)

    def kernel(self, *shape: int) -> Array:
        """A kernel `(..., inputs, outputs)` that keeps the variance."""
        return self(*shape, scale=shape[-2] ** -0.5)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Array:
        """Uniform numbers."""
        return jnp.asarray(self._random.uniform(low, high, shape), float)

    def integers(self, *shape: int, below: int) -> Array:
        """Integers from 0."""
        return jnp.asarray(self._random.integers(0, below, shape), np.int32)


def one_scan(cell: Cell, *, length: int | None = None, reverse: bool = False) -> Run:
    """Run a cell over time, once."""

    def run(scan: Scan, params: Any, carry: Any, xs: Any) -> Any:
        return scan(cell, params, carry, xs, length=length, reverse=reverse)

    return run


def mean_squares(results: Any) -> Array:
    """The sum over the floating leaves of the mean of the squares."""
    leaves = [leaf for leaf in jax.tree.leaves(results) if _is_float(leaf)]
    wide = [leaf.astype(jnp.promote_types(leaf, jnp.float32)) for leaf in leaves]
    return sum((jnp.mean(jnp.square(leaf)) for leaf in wide), jnp.zeros(()))


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
