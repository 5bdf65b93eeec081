"""Connectionist temporal classification, with the network's last layer in the cell.

The labels l are spread out with blanks between them, l' of 2L + 1 positions. In logarithms,

    a'_s = log p(l'_s | x) + logsumexp(a_s, a_{s-1}, a_{s-2} where l'_s is no blank and differs from l'_{s-2})

Source: Graves et al. 2006, "Connectionist Temporal Classification", equations 5 to 8.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


IMPOSSIBLE = -1e5


def cell(params: Any, scores: Array, x: Array) -> tuple[Array, Array]:
    """Carry: a (N, 2L + 1). Input: features (N, D). Output: the log-likelihood of the labels up to this step."""
    labels = params["labels"]
    spread = jnp.zeros((len(labels), 2 * labels.shape[1] + 1), labels.dtype).at[:, 1::2].set(labels)
    emission = jnp.take_along_axis(jax.nn.log_softmax(x @ params["kernel"] + params["bias"]), spread, 1)
    skips = (spread[:, 2:] != 0) & (spread[:, 2:] != spread[:, :-2])
    two_back = jnp.where(jnp.pad(skips, ((0, 0), (2, 0))), _shifted(scores, 2), IMPOSSIBLE)
    scores = emission + jax.nn.logsumexp(jnp.stack([scores, _shifted(scores, 1), two_back]), 0)
    return scores, jnp.logaddexp(scores[:, -1], scores[:, -2])


def _shifted(scores: Array, by: int) -> Array:
    return jnp.pad(scores, ((0, 0), (by, 0)), constant_values=IMPOSSIBLE)[:, :-by]


def _make(draw: Draw, *, steps: int, rows: int, labels: int, features: int, classes: int) -> Problem:
    params = {
        "labels": 1 + draw.integers(rows, labels, below=classes - 1),
        "kernel": draw.kernel(features, classes),
        "bias": draw(classes),
    }
    return Problem(one_scan(cell), params, draw(rows, 2 * labels + 1), draw(steps, rows, features))


USES = {
    "ctc": Use(
        "CTC with its emissions in the cell",
        _make,
        {"steps": 100, "rows": 8, "labels": 20, "features": 64, "classes": 256},
        {"steps": 6, "rows": 2, "labels": 2, "features": 3, "classes": 4},
        ranges={"classes": (2, 1024)},
    )
}
