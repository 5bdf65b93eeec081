"""How far rnnscan is from the loop, in float64 and in float32."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rows import JaxRow


@dataclass(frozen=True)
class Accuracy:
    """The largest differences of loss and gradients from the float64 loop, relative to each leaf's norm.

    Attributes:
        double: of rnnscan in float64.
        single: of rnnscan in float32, over that of the float32 loop.
    """

    double: float
    single: float


def measure_accuracy(rows: Mapping[str, JaxRow]) -> Accuracy:
    """Compute loss and gradients by the loop and by rnnscan, in both precisions, from the same float32 arguments."""
    pair = rows["checkpoint"], rows["rnnscan"]
    single = [_results(row) for row in pair]
    with jax.enable_x64(True):
        loop, own = (_results(_in_float64(row)) for row in pair)
    loop_error, own_error = (_difference(results, loop) for results in single)
    return Accuracy(_difference(own, loop), own_error / (loop_error or float(np.finfo(np.float32).tiny)))


def _in_float64(row: JaxRow) -> JaxRow:
    return replace(row, arguments=jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), row.arguments))


def _results(row: JaxRow) -> list[np.ndarray]:
    train = jax.value_and_grad(row.loss, tuple(range(len(row.arguments))))
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(jax.jit(train)(*row.arguments, *row.data))]


def _difference(results: list[np.ndarray], reference: list[np.ndarray]) -> float:
    pairs = zip(results, reference, strict=True)
    return max(float(np.linalg.norm(one - other) / (np.linalg.norm(other) or 1.0)) for one, other in pairs)
