"""The effect of the decays of a chunk of a matrix state on its keys, and on their products with queries.

With one a for all keys, the products d_ts of the decays between s and t are a matrix `(C, C)`, made row by row. With
one a for each key they would be `(C, C, K)`. There a loop over the steps carries the keys `d_ts u_s`, `(C, K)`, as a
loop over S carries `(K, V)`.

On accelerators, where each step of a loop is slow, both take a logarithmic number of rounds. With one a for each
key, d_ts is then the product from s to a boundary between them, times the product from there: the boundary is the
middle of the smallest aligned block of 2, 4, 8, ... steps that has both.

All these products run over steps in a row. No decay is divided by another, and no logarithm is taken. So a may be 0,
after a reset, nothing overflows that the loop keeps finite, and rounding is that of the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.loops.calls import recomputed
from rnnscan.engine.loops.in_blocks import run_in_blocks
from rnnscan.engine.loops.indexing import items_of
from rnnscan.engine.loops.products_of_decays import Product


# The loop computes these products in full precision on every backend.
matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)

# A GLA over 2,048 steps trains in 1.07 of the time with 8, in 1.22 with 32. In rounds, blocks of 2, 4, 8 and 16 steps
# cost 4 * 16 multiplications for each key and step, as many as a state with 64 values.
LONGEST_PER_KEY = 16


@dataclass(frozen=True)
class Decayed:
    """The effect of the decays of chunks, as in `chunks`.

    Attributes:
        from_start: p, `(..., C, K)` or `(..., C, 1)`.
        to_end: `e_s u_s` of each u, `(..., C, K)`.
        whole: the product over all steps, `(..., 1, K)` or `(..., 1, 1)`.
        scores: `q_t . d_ts u_s` for s < t and 0 elsewhere, `(..., C, C)`, of each q and each u.
    """

    from_start: Any
    to_end: list[Any]
    whole: Any
    scores: list[list[Any]]


def decayed(queries: Sequence[Any], keys: Sequence[Any], decay: Any, *, rounds: bool) -> Decayed:
    """The effect of the decays of chunks.

    Args:
        queries: each q, `(..., C, K)`.
        keys: each u, `(..., C, K)`.
        decay: a, `(..., C, K)` or `(..., C, 1)`.
        rounds: whether in a logarithmic number of rounds, and not in a loop over steps.
    """
    if decay.shape[-1] == 1:
        return _of_all_keys(queries, keys, decay, rounds=rounds)
    return (_per_key_in_rounds if rounds else _per_key_row_by_row)(queries, keys, decay)


def transposed(leaf: Any) -> Any:
    """The transpose of each matrix."""
    return jnp.swapaxes(leaf, -1, -2)


def _of_all_keys(queries: Sequence[Any], keys: Sequence[Any], decay: Any, *, rounds: bool) -> Decayed:
    rows, after = (_products_in_rounds if rounds else _products_row_by_row)(_by_step(decay))
    rows = _by_row(rows)
    between = rows[..., 1:]
    return Decayed(
        from_start=rows[..., :1],
        to_end=[key * after[..., 1:, None] for key in keys],
        whole=after[..., None, :1],
        scores=[[matmul(query, transposed(key)) * between for key in keys] for query in queries],
    )


def _products_row_by_row(decay: Any) -> tuple[Any, Any]:
    """From decays `(C, ..., 1)` the products from the chunk's start, and from after each step, to before each step.

    Returns:
        `(C, ..., 1 + C)`, with zeros for later steps, and the products to the end `(..., 1 + C)`.
    """
    steps = len(decay)

    @recomputed  # Else masks are stacked for the backward pass.
    def extend(products: Product, step_inputs: Any) -> tuple[Product, Any]:
        decay, is_own = step_inputs
        longer = products.times_number(jnp.broadcast_to(decay, products.value.shape))
        ones = Product.of(jnp.ones_like(longer.value))
        return jax.tree.map(partial(jnp.where, is_own), ones, longer), products.value

    slots = _slots(steps + 1)
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


def _per_key_row_by_row(queries: Sequence[Any], keys: Sequence[Any], decay: Any) -> Decayed:
    @recomputed  # Else masked keys are stacked for the backward pass.
    def extend(state: tuple[Product, list[Any]], step_inputs: Any) -> tuple[tuple[Product, list[Any]], Any]:
        passed, so_far = state
        queries, keys, decay, is_own = step_inputs
        scores = [[matmul(earlier, query[..., None])[..., 0] for earlier in so_far] for query in queries]
        after = [
            jnp.where(is_own[:, None], key[..., None, :], earlier * decay[..., None, :])
            for key, earlier in zip(keys, so_far, strict=True)
        ]
        longer = passed.times_number(jnp.broadcast_to(decay, passed.value.shape))
        return (longer, after), (passed.value, scores)

    ones = Product.of(lax.full_like(decay[..., 0, :], 1))
    none = [jnp.zeros_like(key * decay) for key in keys]
    xs = ([*map(_by_step, queries)], [*map(_by_step, keys)], _by_step(decay), _slots(decay.shape[-2]))
    (whole, to_end), (from_start, scores) = lax.scan(extend, (ones, none), xs)
    return Decayed(_by_row(from_start), to_end, whole.value[..., None, :], jax.tree.map(_by_row, scores))


def _per_key_in_rounds(queries: Sequence[Any], keys: Sequence[Any], decay: Any) -> Decayed:
    """By blocks of 1, 2, 4, ... steps, of which each two are joined."""
    steps = decay.shape[-2]
    time = lax.iota(int, steps)  # No constant: a backward pass keeps those.

    # A loop over the sizes of blocks compiles in half the time of a program with all of them. Its backward pass makes
    # masks and products again: on a CPU a GLA trained in 0.9 of the time so, in 0.8 of the memory.
    @recomputed
    def join_blocks(blocks: tuple[Any, Any, Product, Any], size: Any) -> tuple[tuple[Any, Any, Product, Any], None]:
        from_start, to_end, whole, scores = blocks
        rows, columns = time[:, None], time[None]
        second = rows & size != 0
        crosses = second & (columns & size == 0) & ((rows ^ columns) < 2 * size)
        products = [[matmul(query * from_start, transposed(key * to_end)) for key in keys] for query in queries]
        scores = jax.tree.map(lambda so_far, product: so_far + jnp.where(crosses, product, 0), scores, products)
        other = jax.tree.map(lambda leaf: _swapped(leaf, size, second), whole)
        from_start = jnp.where(second, from_start * other.value, from_start)
        to_end = jnp.where(second, to_end, to_end * other.value)
        return (from_start, to_end, whole.times(other), scores), None

    ones = lax.full_like(decay, 1)  # Of blocks of one step.
    none = [[jnp.zeros_like(query @ transposed(key)) for key in keys] for query in queries]
    sizes = 1 << lax.iota(int, steps.bit_length() - 1)
    (from_start, to_end, whole, scores), _ = lax.scan(join_blocks, (ones, ones, Product.of(decay), none), sizes)
    return Decayed(from_start, [key * to_end for key in keys], whole.value[..., :1, :], scores)


def _swapped(leaf: Any, size: Any, second: Any) -> Any:
    """Blocks `(..., C, K)` of `size` steps, each in the place of the one that it is joined with."""
    steps = leaf.shape[-2]
    twice = jnp.concatenate([leaf, leaf], -2)
    before, after = (items_of(twice, first, steps, -2) for first in (steps - size, size))
    return jnp.where(second, before, after)


def _by_step(rows: Any) -> Any:
    """`(..., C, K)` as `(C, ..., K)`."""
    return jnp.moveaxis(rows, -2, 0)


def _by_row(steps: Any) -> Any:
    """`(C, ..., K)` as `(..., C, K)`."""
    return jnp.moveaxis(steps, 0, -2)


def _slots(size: int) -> Any:
    """For each number below the size a mask that is true at its place. No constant: a backward pass keeps those."""
    return lax.broadcasted_iota(int, (size, size), 0) == lax.broadcasted_iota(int, (size, size), 1)
