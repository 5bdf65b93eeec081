"""The chunkwise form of a matrix state.

    S_t = a_t * S_{t-1} + u_t w_t^T        y_t = S_{t-1}^T q_t

Over a chunk of C steps after S_0, with p_t the product of the a from the chunk's first step to the one before t, d_ts
the product of those between s and t, and e_s the product of those after s, three matrix products give all reads and the
next state:

    y_t = S_0^T (p_t q_t) + sum_{s < t} (q_t . d_ts u_s) w_s        S_C = p_C a_C * S_0 + sum_s (e_s u_s) w_s^T

Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training", section 4.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.loops.decays import LONGEST_PER_KEY, decayed, matmul, transposed
from rnnscan.engine.loops.in_blocks import apply_linear, compose_linear, run_in_blocks


def run_chunks(
    queries: Sequence[Any], decay: Any, terms: Sequence[tuple[Any, Any]], start: Any, chunk: int, *, rounds: bool
) -> tuple[list[Any], Any]:
    """The reads of the state before each step, and the last state.

    Args:
        queries: q of each read, `(T, ..., K)`.
        decay: a, `(T, ..., K)` or `(T, ..., 1)`.
        terms: u `(T, ..., K)` and w `(T, ..., V)` of each outer product.
        start: the state before the first step, `(..., K, V)`.
        chunk: C, a power of two. With a decay for each key, chunks have 16 steps at most.
        rounds: whether to run recurrences in a logarithmic number of rounds, and not in loops.

    Returns:
        y of each read, `(T, ..., V)`, and the state after the last step. Axes `...` may have size 1 in the arguments.
    """
    steps = len(decay)
    cut = partial(_cut, chunk=chunk if decay.shape[-1] == 1 else min(chunk, LONGEST_PER_KEY))
    queries, terms = [*map(cut, queries)], [(cut(u), cut(w)) for u, w in terms]
    decays = decayed(queries, [u for u, _ in terms], cut(decay, filling=1), rounds=rounds)
    written = sum(matmul(transposed(u), w) for u, (_, w) in zip(decays.to_end, terms, strict=True))
    states, last = recurrence(transposed(decays.whole), written, start, rounds=rounds)
    reads = []
    for query, scores in zip(queries, decays.scores, strict=True):
        read = matmul(query * decays.from_start, states)
        read += sum(matmul(weights, w) for weights, (_, w) in zip(scores, terms, strict=True))
        reads.append(_joined(read)[:steps])
    return reads, last


def recurrence(decay: Any, added: Any, start: Any, *, rounds: bool) -> tuple[Any, Any]:
    """`r' = decay * r + added` over the first axis: r before each step, and the last one."""
    if not rounds:
        return _in_a_loop(decay, added, start)
    after = run_in_blocks(compose_linear, apply_linear, (decay, added), start, reverse=False)
    return jnp.concatenate([start[None], after[:-1]]), after[-1]


def _loop(decay: Any, added: Any, start: Any) -> tuple[Any, Any]:
    def add(total: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
        return step[0] * total + step[1], total

    last, before = lax.scan(add, start, (decay, added))
    return before, last


# The derivative is the same recurrence, which adds `decay' * r`. JAX would stack r for it once more.
_in_a_loop = jax.custom_jvp(_loop)


@_in_a_loop.defjvp
def _differentiate(primals: tuple[Any, Any, Any], tangents: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    (decay, *_), (of_decay, of_added, of_start) = primals, tangents
    before, last = _in_a_loop(*primals)
    return (before, last), _loop(decay, of_decay * before + of_added, of_start)


def _cut(leaf: Any, chunk: int, filling: int = 0) -> Any:
    """Steps `(T, ..., K)` as chunks `(T / C, ..., C, K)`. The last one is filled up."""
    missing = -leaf.shape[0] % chunk
    if missing:
        leaf = lax.pad(leaf, jnp.asarray(filling, leaf.dtype), [(0, missing, 0), *[(0, 0, 0)] * (leaf.ndim - 1)])
    return jnp.moveaxis(leaf.reshape(leaf.shape[0] // chunk, chunk, *leaf.shape[1:]), 1, -2)


def _joined(leaf: Any) -> Any:
    """Chunks as steps."""
    leaf = jnp.moveaxis(leaf, -2, 1)
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
