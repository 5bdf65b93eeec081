"""The forward algorithm of hidden Markov models, in logarithms.

    a'_j = logsumexp_i(a_i + A_ij) + log p(x | j)

"hmm" makes log p(x | j) from features in the cell, and normalises A there. In "crf", a linear-chain conditional random
field, the inputs are the potentials themselves. "viterbi" takes the maximum in place of logsumexp.

Sources: Rabiner 1989, "A Tutorial on Hidden Markov Models", equation 20; Lafferty et al. 2001, "Conditional Random
Fields".
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def hmm_cell(params: Any, scores: Array, x: Array) -> tuple[Array, Array]:
    """Carry: log p(x_1..t, state) (N, S)."""
    emission = jax.nn.log_softmax(x @ params["kernel"] + params["bias"])
    scores = crf_cell(jax.nn.log_softmax(params["move"]), scores, emission)[0]
    return scores, jax.nn.logsumexp(scores, -1)


def crf_cell(move: Array, scores: Array, potential: Array) -> tuple[Array, Array]:
    """Carry: the log of the sum over all paths (N, S)."""
    scores = jax.nn.logsumexp(scores[:, :, None] + move, 1) + potential
    return scores, scores


def viterbi_cell(move: Array, scores: Array, potential: Array) -> tuple[Array, Any]:
    """Carry: the score of the best path (N, S). Output: it, and the state before, an integer."""
    paths = scores[:, :, None] + move
    scores = jnp.max(paths, 1) + potential
    return scores, (scores, jnp.argmax(paths, 1))


def _make_hmm(draw: Draw, *, steps: int, rows: int, states: int, features: int) -> Problem:
    params = {"kernel": draw.kernel(features, states), "bias": draw(states), "move": draw(states, states)}
    return Problem(one_scan(hmm_cell), params, draw(rows, states), draw(steps, rows, features))


def _make_crf(draw: Draw, *, steps: int, rows: int, states: int, best: bool = False) -> Problem:
    return Problem(
        one_scan(viterbi_cell if best else crf_cell),
        draw(states, states),
        draw(rows, states),
        draw(steps, rows, states),
    )


USES = {
    "hmm": Use(
        "HMM, forward algorithm",
        _make_hmm,
        {"steps": 200, "rows": 16, "states": 32, "features": 64},
        {"steps": 6, "rows": 2, "states": 3, "features": 4},
    ),
    "crf": Use(
        "linear-chain CRF, logsumexp(a[:, :, None] + A, 1)",
        _make_crf,
        {"steps": 200, "rows": 16, "states": 32},
        {"steps": 6, "rows": 2, "states": 3},
    ),
    "viterbi": Use(
        "Viterbi, the best path",
        _make_crf,
        {"steps": 200, "rows": 16, "states": 32, "best": True},
        {"steps": 6, "rows": 2, "states": 3, "best": True},
    ),
}
