"""Differences between results, and how a sentence says where they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import is_key


@dataclass(frozen=True)
class Finding:
    """What one part of a check found.

    Attributes:
        worst: the largest relative difference.
        problem: a sentence about a difference that must not be; None without one.
    """

    worst: float = 0.0
    problem: str | None = None


def found(*findings: Finding) -> Finding:
    """Several findings as one: the first problem, and the largest difference."""
    problem = next((each.problem for each in findings if each.problem), None)
    return Finding(max((each.worst for each in findings), default=0.0), problem)


def close(
    actual: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float, than: str, *, gradients: bool = False
) -> Finding:
    """Compare results to a tolerance, relative to the largest value of each leaf or to 1.

    Args:
        actual: arrays by place.
        expected: the same of the reference.
        tolerance: the largest difference.
        than: the reference, for the sentence: "step by step".
        gradients: whether they are gradients.
    """
    if actual.keys() != expected.keys():
        return Finding(np.inf, f"the results are {sorted(actual)}, and {than} {sorted(expected)}")
    worst = 0.0
    for name, reference in expected.items():
        value = actual[name]
        if value.shape != reference.shape:
            return Finding(np.inf, f"{name} has the shape {value.shape}, and {than} {reference.shape}")
        error = relative_error(value, reference)
        if error.size and not error.max() <= tolerance:
            index = np.unravel_index(int(error.argmax()), error.shape)
            shown = f"{_number(value[index])}, and {than} {_number(reference[index])}"
            return Finding(float(error.max()), f"{_of(name, gradients)}{place(name, index)} is {shown}")
        worst = max(worst, float(error.max(initial=0)))
    return Finding(worst)


def relative_error(actual: Any, expected: Any) -> np.ndarray:
    """The difference of two arrays relative to the largest value of the second, or to 1. NaN differs from all."""
    actual, expected = wide(actual), wide(expected)
    if actual.dtype.kind not in "fc":
        return (actual != expected).astype(float)
    magnitudes = np.abs(expected)
    with np.errstate(all="ignore"):
        error = np.abs(actual - expected) / max(1.0, float(magnitudes.max(initial=0, where=np.isfinite(magnitudes))))
    return np.where(np.isnan(error), np.inf, error)


def changed(before: Any, after: Any) -> np.ndarray:
    """Where two arrays differ in a bit of their value. NaN equals NaN."""
    before, after = wide(before), wide(after)
    same = before == after
    if before.dtype.kind in "fc":
        same |= np.isnan(before) & np.isnan(after)
    return ~same


def wide(leaf: Any) -> np.ndarray:
    """An array of a dtype that NumPy computes with; PRNG keys as their data."""
    if is_key(leaf):
        return np.asarray(jax.random.key_data(leaf))
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return np.asarray(leaf).astype(np.float64)
    return np.asarray(leaf)


def change(before: Any, after: Any) -> str:
    """How a value changed, in words: `changes by 0.3`, `becomes nan`."""
    before, after = wide(before), wide(after)
    if before.dtype.kind in "fc" and not np.isfinite(after):
        return f"becomes {_number(after)}"
    if before.dtype.kind in "fc":
        return f"changes by {_number(np.abs(after - before))}"
    return f"changes from {before} to {after}"


def place(name: str, index: tuple[Any, ...]) -> str:
    """Where in a result or argument: ` at step 0, row 1`. Outputs and inputs have time first, carries rows first."""
    root = name.split("/")[0]
    if root == "params" or not index:
        return ""
    step = f" at step {index[0]}" if root in ("y", "xs") else ""
    rows = index[1:2] if root in ("y", "xs") else index[:1]
    row = "".join(f"{',' if step else ' of'} row {int(each)}" for each in rows)
    return step + row


def _of(name: str, gradients: bool) -> str:
    return f"the gradient of {name}" if gradients else name


def _number(value: Any) -> str:
    return f"{np.asarray(value).item():.3g}"
