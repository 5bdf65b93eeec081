"""Factors of small matrices, and solutions with them, a row or column at a time.

Each equals LAPACK's result to rounding, NaN and the signs of rows included. Source: Golub and Van Loan, "Matrix
Computations", 4th edition: algorithms 3.1.3 and 3.1.4 (triangular solves), 3.4.1 (LU), 4.2.2 (Cholesky) and 5.2.1 (QR).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.one_kernel.indexing import sum_where
from rnnscan.ir.program import Equation


def cholesky(equation: Equation, a: Any) -> list[Any]:
    """The lower factor of `L L^T = a`; NaN if a is not positive definite."""
    del equation
    return [_lower_factor(a)]


@jax.jit
def _lower_factor(a: Any) -> Any:
    rest, columns, is_positive = a, [], jnp.ones((*a.shape[:-2], 1, 1), bool)
    for index in range(a.shape[-1]):
        pivot = rest[..., :1, :1]
        is_positive = is_positive & ~(pivot <= 0)  # A NaN goes no further than sums and products take it.
        root = jnp.sqrt(pivot)  # Not `pivot / root`, which is NaN for an infinity.
        below = rest[..., 1:, :1] / root
        above = (*((0, 0, 0),) * (a.ndim - 2), (index, 0, 0), (0, 0, 0))
        columns.append(lax.pad(jnp.concatenate([root, below], -2), jnp.zeros((), a.dtype), above))
        rest = rest[..., 1:, 1:] - below * below.mT
    # Multiplied, not selected: a tangent of a factor that is NaN is NaN too.
    return jnp.concatenate(columns, -1) * jnp.where(is_positive, jnp.ones((), a.dtype), jnp.nan)


def triangular_solve(equation: Equation, a: Any, b: Any) -> list[Any]:
    """The solution of `a x = b` or `x a = b` for a triangular a, as the parameters of the equation say."""
    params = equation.params
    lower, transposes = params["lower"], params["transpose_a"]
    if not params["left_side"]:  # x a = b is a^T x^T = b^T.
        b, transposes = b.mT, not transposes
    if transposes:
        a, lower = a.mT, not lower
    x = _by_rows(a, b, lower=lower, has_unit_diagonal=params["unit_diagonal"])
    return [x if params["left_side"] else x.mT]


@partial(jax.jit, static_argnums=(2, 3))
def _by_rows(a: Any, b: Any, lower: bool, has_unit_diagonal: bool) -> Any:
    """The solution of `a x = b`: each row in turn, which is then taken out of the others."""
    rows, size = [], a.shape[-1]
    for index in range(size) if lower else reversed(range(size)):
        row, rest = (b[..., :1, :], b[..., 1:, :]) if lower else (b[..., -1:, :], b[..., :-1, :])
        if not has_unit_diagonal:
            row = row / a[..., index : index + 1, index : index + 1]
        column = a[..., index + 1 :, index : index + 1] if lower else a[..., :index, index : index + 1]
        rows.append(row)
        b = rest - column * row
    return jnp.concatenate(rows if lower else rows[::-1], -2)


def lu(equation: Equation, a: Any) -> list[Any]:
    """The factors of `a[permutation] = L U` in one matrix, the pivots and the permutation, with partial pivoting."""
    del equation
    order = permutation = lax.broadcasted_iota(jnp.int32, (*a.shape[:-1], 1), a.ndim - 2)
    pivots = []
    for index in range(min(a.shape[-2:])):
        size = jnp.abs(a[..., index:, index : index + 1])
        pivot = index + jnp.argmax(size, -2, keepdims=True).astype(jnp.int32)
        pivots.append(pivot)
        a, permutation = (_swapped(rows, order, index, pivot) for rows in (a, permutation))
        divisor = a[..., index : index + 1, index : index + 1]
        column = a[..., :, index : index + 1]
        below = (order > index) & (divisor != 0)
        factor = jnp.where(below, column / jnp.where(divisor == 0, jnp.ones_like(divisor), divisor), 0)
        place = lax.broadcasted_iota(jnp.int32, a.shape, a.ndim - 1)
        # Selected, not multiplied with zeros: an infinity stays what it is in the rows and columns that are done.
        a = jnp.where((order > index) & (place > index), a - factor * a[..., index : index + 1, :], a)
        a = jnp.where((order > index) & (place == index), jnp.broadcast_to(factor, a.shape), a)
    return [a, jnp.concatenate(pivots, -2)[..., 0], permutation.squeeze(-1)]


def pivots_to_permutation(equation: Equation, pivots: Any) -> list[Any]:
    """The permutation that swaps of rows in turn make."""
    size = equation.params["permutation_size"]
    shape = (*pivots.shape[:-1], size, 1)
    order = permutation = lax.broadcasted_iota(jnp.int32, shape, len(shape) - 2)
    for index in range(pivots.shape[-1]):
        permutation = _swapped(permutation, order, index, pivots[..., index : index + 1, None])
    return [permutation.squeeze(-1)]


def qr(equation: Equation, a: Any) -> list[Any]:
    """The factors of `q r = a` by reflections, with the signs of LAPACK's."""
    return list(_reflected(a, whole=bool(equation.params["full_matrices"])))


@partial(jax.jit, static_argnames="whole")
def _reflected(a: Any, *, whole: bool) -> tuple[Any, Any]:
    """The factors q and r, of all rows or of as many as columns.

    The columns run in a loop. Written one after the other, a square root filter of 4 states trains in 0.7 of its time
    with jax 0.12, and in 1.04 with 0.10.2, but compiles for 1.35 and 1.45 of its time.
    """
    rows, columns = a.shape[-2:]
    # Axes are added by hand, for `jax_numpy_rank_promotion="raise"`.
    ones = (1,) * (a.ndim - 2)
    row = lax.broadcasted_iota(jnp.int32, (*ones, rows, 1), a.ndim - 2)
    column = lax.broadcasted_iota(jnp.int32, (*ones, 1, columns), a.ndim - 1)

    def reflect(index: Any, factors: tuple[Any, Any]) -> tuple[Any, Any]:
        q, r = factors
        normal, scale = _reflection(sum_where(column == index, r, -1, keepdims=True), row, index)
        reflected = r - normal * (scale * sum_where(row >= index, normal * r, -2, keepdims=True))
        r = jnp.where((row >= index) & (column >= index), reflected, r)
        normal = normal.mT
        turned = q - (scale * jnp.sum(q * normal, -1, keepdims=True)) * normal
        return jnp.where(row.mT >= index, turned, q), r

    q = jnp.broadcast_to(jnp.eye(rows, dtype=a.dtype), (*a.shape[:-2], rows, rows))
    size = min(rows, columns)
    q, r = lax.fori_loop(0, size, reflect, (q, a))
    return (q, jnp.triu(r)) if whole else (q[..., :, :size], jnp.triu(r[..., :size, :]))


def _reflection(x: Any, row: Any, index: Any) -> tuple[Any, Any]:
    """The normal v and the scale s of the reflection `I - s v v^T` that zeroes a column below a row.

    LAPACK reflects nothing if all elements below are zero.

    Args:
        x: the column.
        row: the numbers of the rows.
        index: the number of the row.
    """
    first, below = sum_where(row == index, x, -2, keepdims=True), jnp.where(row > index, x, jnp.zeros_like(x))
    is_done = jnp.all(below == 0, -2, keepdims=True)
    # Squares of what is far from one are zero, or infinite. The reflection does not depend on the size.
    size = jnp.maximum(jnp.max(jnp.abs(below), -2, keepdims=True), jnp.abs(first))
    size = jnp.where(size > 0, size, jnp.ones_like(size))
    first, below = first / size, below / size
    squares = jnp.square(first) + jnp.sum(jnp.square(below), -2, keepdims=True)
    norm = jnp.sqrt(jnp.where(is_done, jnp.ones_like(squares), squares))
    element = jnp.where(first < 0, first - norm, first + norm)
    normal = jnp.where(row == index, element, below)
    return normal, jnp.where(is_done, jnp.zeros_like(first), 1 / (norm * jnp.abs(element)))


def _swapped(rows: Any, order: Any, index: int, pivot: Any) -> Any:
    """Rows of which two are swapped: the one at a fixed place, and the one at a place that is an array."""
    at_pivot = sum_where(order == pivot, rows, -2, keepdims=True)
    at_index = rows[..., index : index + 1, :]
    # If both are the same row, the second choice wins.
    swapped = jnp.where(order == pivot, jnp.broadcast_to(at_index, rows.shape), rows)
    return jnp.where(order == index, jnp.broadcast_to(at_pivot, rows.shape), swapped)
