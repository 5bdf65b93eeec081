"""How far the chunkwise form is from the loop, in float64 and in float32."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from benchmarks.beyond.rows import checkpoint_scan
from benchmarks.beyond.use import Problem, Scan


@dataclass(frozen=True)
class Accuracy:
    """The largest differences of loss and gradients from the float64 loop, relative to each leaf's norm.

    Attributes:
        double: of rnnscan in float64.
        single: of rnnscan in float32, over that of the float32 loop.
    """

    double: float
    single: float


def measure_accuracy(problem: Problem) -> Accuracy:
    """Compute loss and gradients by the loop and by rnnscan, in both precisions, from the same float32 arguments."""
    floats, others = problem.split_arguments()
    single = [_results(problem, scan, floats, others) for scan in (checkpoint_scan, rs.scan)]
    with jax.enable_x64(True):
        floats = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), floats)
        loop, own = (_results(problem, scan, floats, others) for scan in (checkpoint_scan, rs.scan))
    loop_error, own_error = (_difference(results, loop) for results in single)
    return Accuracy(_difference(own, loop), own_error / loop_error)


def _results(problem: Problem, scan: Scan, floats: Any, others: Any) -> list[np.ndarray]:
    results = jax.jit(jax.value_and_grad(problem.loss(scan)))(floats, others)
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(results)]


def _difference(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in pairs)
