"""An estimate of the time and memory of a training step, from the jaxpr of its loss.

It takes a fixed machine, not the one it runs on, so that the sizes of a seed are the same everywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw
from benchmarks.sweep.case import Case


# Two cores of a server. XLA fuses most operations, so that few of them read and write memory, or start alone.
FLOPS, BYTES, START = 1e11, 2e10, 1e-7
# Of products with fewer operations than `SMALL`.
SMALL_FLOPS, SMALL = 1e10, 1e6
# The training step does the forward pass, and about twice its work backward.
PASSES = 3
# The trips of a loop whose number the jaxpr does not say.
TRIPS = 10
VIEWS = frozenset({"broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy"})
LINEAR_ALGEBRA = frozenset({"lu", "lu_pivots_to_permutation", "triangular_solve", "cholesky"})


@dataclass(frozen=True)
class Estimate:
    """An estimate.

    Attributes:
        seconds: the time of a training step by plain autodiff.
        bytes: the arguments, and the values of all steps, as plain autodiff keeps at most.
    """

    seconds: float
    bytes: float


class _Shapes(Draw):
    """Arrays of zeros, which a trace does not make."""

    def __call__(self, *shape: int, scale: float = 1.0) -> Array:
        return jnp.zeros(shape, float)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Array:
        return jnp.zeros(shape, float)

    def integers(self, *shape: int, below: int) -> Array:
        return jnp.zeros(shape, jnp.int32)


def estimate(case: Case) -> Estimate:
    """Estimate a case. Nothing is computed."""
    losses = []

    def arguments() -> Any:
        (row,) = case.rows(["plain"], _Shapes()).values()
        losses.append(row.loss)
        return (*row.arguments, *row.data)

    types = jax.eval_shape(arguments)
    size = sum(_bytes(leaf) for leaf in jax.tree.leaves(types))
    work = _work(jax.make_jaxpr(losses[0])(*types).jaxpr)
    return Estimate(PASSES * work.seconds, size + work.bytes)


def _work(jaxpr: Any) -> Estimate:
    seconds, size = 0.0, 0.0
    for equation in jaxpr.eqns:
        inner = [_work(one) for one in _inner(equation.params)]
        if inner:
            trips = equation.params.get("length", TRIPS if equation.primitive.name == "while" else 1)
            longest = max(inner, key=lambda one: one.seconds)
            seconds, size = seconds + trips * longest.seconds, size + trips * longest.bytes
            continue
        result = sum(_bytes(variable.aval) for variable in equation.outvars)
        operations = _operations(equation)
        seconds += START + operations / (FLOPS if operations > SMALL else SMALL_FLOPS)
        if equation.primitive.name not in VIEWS:
            seconds, size = seconds + result / BYTES, size + result
    return Estimate(seconds, size)


def _operations(equation: Any) -> float:
    """The operations of products and of linear algebra. Others take the time of their bytes."""
    name, result = equation.primitive.name, equation.outvars[0].aval
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * result.size * prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, features = equation.invars[1].aval, equation.params["dimension_numbers"].rhs_spec[0]
        return 2 * result.size * kernel.size / kernel.shape[features]
    if name in LINEAR_ALGEBRA:
        return 2 * result.size * max(equation.invars[0].aval.shape, default=1)
    return 0


def _inner(params: Any) -> Iterator[Any]:
    """The jaxprs of an equation. Rules of derivatives are functions, and are not among them."""
    for leaf in jax.tree.leaves(list(params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr")):
        leaf = getattr(leaf, "jaxpr", leaf)
        if hasattr(leaf, "eqns"):
            yield leaf


def _bytes(array: Any) -> int:
    # A random key has a dtype of its own, whose size is hidden.
    return array.size * getattr(array.dtype, "itemsize", 8)
