"""The chunkwise form of a matrix state.

    S_t = a_t * S_{t-1} + u_t w_t^T        y_t = S_{t-1}^T q_t

Over a chunk of C steps after S_0, with p_t the product of the a from the chunk's first step to the one before t, and
e_s the product of those after s, three matrix products give all reads and the next state:

    y_t = S_0^T (p_t q_t) + sum_{s < t} (q_t . d_ts u_s) w_s        S_C = p_C a_C * S_0 + sum_s (e_s u_s) w_s^T

where d_ts is the product of the a between s and t. With one a for all keys, d is a matrix `(C, C)`, made row by row.
With one a for each key it would be `(C, C, K)`. There d_ts is the product from s to a boundary between them, times the
product from there: the boundary is the middle of the smallest aligned block of 2, 4, 8, ... steps that has both.

All these products run over steps in a row. No decay is divided by another, and no logarithm is taken. So a may be 0,
after a reset, nothing overflows that the loop keeps finite, and rounding is that of the loop.

Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training", section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.fission.execute.in_blocks import apply_linear, compose_linear, run_in_blocks
from rnnscan.engine.fission.execute.items import items_of
from rnnscan.engine.matrix_state.products import Product


# The loop computes these products in full precision on every backend.
_matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)

# Blocks of 2, 4, 8 and 16 steps cost 4 * 16 multiplications for each key and step, as many as a state with 64 values.
_LONGEST_PER_KEY = 16


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
    steps, per_key = len(decay), decay.shape[-1] != 1
    if per_key:
        chunk = min(chunk, _LONGEST_PER_KEY)
    cut = partial(_cut, chunk=chunk)
    queries, terms = [*map(cut, queries)], [(cut(u), cut(w)) for u, w in terms]
    keys = [u for u, _ in terms]
    products_of = partial(_of_all_keys, rounds=rounds)
    own = (_per_key if per_key else products_of)(queries, keys, cut(decay, filling=1))
    written = sum(_matmul(_transposed(u * own.to_end), w) for u, w in terms)
    states, last = recurrence(_transposed(own.whole), written, start, rounds=rounds)
    reads = []
    for query, scores in zip(queries, own.scores, strict=True):
        read = _matmul(query * own.from_start, states)
        read += sum(_matmul(its, w) for its, (_, w) in zip(scores, terms, strict=True))
        reads.append(_joined(read)[:steps])
    return reads, last


def recurrence(decay: Any, added: Any, start: Any, *, rounds: bool) -> tuple[Any, Any]:
    """`r' = decay * r + added` over the first axis: r before each step, and the last one."""

    def add(total: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
        return step[0] * total + step[1], total

    if not rounds:
        last, before = lax.scan(add, start, (decay, added))
        return before, last
    after = run_in_blocks(compose_linear, apply_linear, (decay, added), start, reverse=False)
    return jnp.concatenate([start[None], after[:-1]]), after[-1]


@dataclass(frozen=True)
class _Chunks:
    """What the decays of chunks make.

    Attributes:
        from_start: p, `(..., C, K)` or `(..., C, 1)`.
        to_end: e, of the same shape.
        whole: the product over all steps, `(..., 1, K)` or `(..., 1, 1)`.
        scores: `q_t . d_ts u_s` for s < t and 0 elsewhere, `(..., C, C)`, of each q and each u.
    """

    from_start: Any
    to_end: Any
    whole: Any
    scores: list[list[Any]]


def _of_all_keys(queries: Sequence[Any], keys: Sequence[Any], decay: Any, *, rounds: bool) -> _Chunks:
    """Chunks with one decay `(..., C, 1)` for all keys."""
    rows, after = (_products_in_rounds if rounds else _products_row_by_row)(jnp.moveaxis(decay, -2, 0))
    rows = jnp.moveaxis(rows, 0, -2)
    between = rows[..., 1:]
    return _Chunks(
        from_start=rows[..., :1],
        to_end=after[..., 1:, None],
        whole=after[..., None, :1],
        scores=[[_matmul(query, _transposed(key)) * between for key in keys] for query in queries],
    )


def _products_row_by_row(decay: Any) -> tuple[Any, Any]:
    """From decays `(C, ..., 1)` the products from the chunk's start, and from after each step, to before each step.

    Returns:
        `(C, ..., 1 + C)`, with zeros for later steps, and the products to the end `(..., 1 + C)`.
    """
    steps = len(decay)

    @partial(jax.checkpoint, prevent_cse=False)  # Else masks are stacked for the backward pass.
    def extend(products: Product, given: Any) -> tuple[Product, Any]:
        decay, is_own = given
        longer = products.times_number(jnp.broadcast_to(decay, products.rounded.shape))
        one = Product.of(jnp.ones_like(longer.rounded))
        return jax.tree.map(partial(jnp.where, is_own), one, longer), products.value

    # Masks are made here, because a backward pass keeps constants.
    slots = lax.broadcasted_iota(int, (steps + 1, steps + 1), 0) == lax.broadcasted_iota(int, (steps + 1,) * 2, 1)
    before = jnp.where(slots[0], lax.full_like(decay[0], 1), lax.full_like(decay[0], 0))
    after, rows = lax.scan(extend, Product.of(before), (decay, slots[1:]))
    return rows, after.value


def _products_in_rounds(decay: Any) -> tuple[Any, Any]:
    """The same in a logarithmic number of rounds."""
    steps = len(decay)
    shape = (steps, *(1,) * (decay.ndim - 2), steps + 1)
    step, slot = (lax.broadcasted_iota(int, shape, axis) for axis in (0, len(shape) - 1))
    factors = jnp.where(step >= slot, decay, lax.full_like(decay, 1))
    after = run_in_blocks(jnp.multiply, jnp.multiply, factors, jnp.ones_like(factors[0]), reverse=False)
    after = jnp.where(step + 1 >= slot, after, lax.full_like(decay, 0))
    first = jnp.where(slot[0] == 0, lax.full_like(decay[0], 1), lax.full_like(decay[0], 0))
    return jnp.concatenate([first[None], after[:-1]]), after[-1]


def _per_key(queries: Sequence[Any], keys: Sequence[Any], decay: Any) -> _Chunks:
    """Chunks with a decay `(..., C, K)` for each key."""
    steps = decay.shape[-2]
    time = lax.iota(int, steps)  # No constant: a backward pass keeps those.

    # A loop over the sizes of blocks compiles in half the time of a program with all of them. Its backward pass makes
    # masks and products again: a GLA trains in 0.9 of the time so, in 0.8 of the memory.
    @partial(jax.checkpoint, prevent_cse=False)
    def join_blocks(blocks: tuple[Any, Any, Product, Any], size: Any) -> tuple[tuple[Any, Any, Product, Any], None]:
        from_start, to_end, whole, scores = blocks
        second = (time & size != 0)[:, None]
        crosses = second & (time & size == 0) & ((time[:, None] ^ time) < 2 * size)
        products = [[_matmul(query * from_start, _transposed(key * to_end)) for key in keys] for query in queries]
        scores = jax.tree.map(lambda so_far, product: so_far + jnp.where(crosses, product, 0), scores, products)
        other = jax.tree.map(lambda leaf: _swapped(leaf, size, second), whole)
        from_start = jnp.where(second, from_start * other.value, from_start)
        to_end = jnp.where(second, to_end, to_end * other.value)
        return (from_start, to_end, whole.times(other), scores), None

    ones = lax.full_like(decay, 1)  # Of blocks of one step.
    none = [[jnp.zeros_like(query @ _transposed(key)) for key in keys] for query in queries]
    sizes = 1 << lax.iota(int, steps.bit_length() - 1)
    (from_start, to_end, whole, scores), _ = lax.scan(join_blocks, (ones, ones, Product.of(decay), none), sizes)
    return _Chunks(from_start, to_end, whole.value[..., :1, :], scores)


def _swapped(leaf: Any, size: Any, second: Any) -> Any:
    """Blocks `(..., C, K)` of `size` steps, each in the place of the one that it is joined with."""
    steps = leaf.shape[-2]
    twice = jnp.concatenate([leaf, leaf], -2)
    before, after = (items_of(twice, first, steps, -2) for first in (steps - size, size))
    return jnp.where(second, before, after)


def _cut(leaf: Any, chunk: int, filling: int = 0) -> Any:
    """Steps `(T, ..., K)` as chunks `(T / C, ..., C, K)`. The last one is filled up."""
    missing = -leaf.shape[0] % chunk
    if missing:
        leaf = lax.pad(leaf, jnp.asarray(filling, leaf.dtype), [(0, missing, 0), *[(0, 0, 0)] * (leaf.ndim - 1)])
    return jnp.moveaxis(leaf.reshape(-1, chunk, *leaf.shape[1:]), 1, -2)


def _joined(leaf: Any) -> Any:
    """Chunks as steps."""
    leaf = jnp.moveaxis(leaf, -2, 1)
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _transposed(leaf: Any) -> Any:
    return jnp.swapaxes(leaf, -1, -2)
