"""Affine recurrences of small blocks: `d_t = J_t d_{t-1} + b_t`, element by element, as an associative scan.

The k leaves of a loop are k numbers at each element, and J_t is a k x k matrix there. Two steps make one,

    d -> J d + b,  d -> J' d + b'    become    d -> (J' J) d + (J' b + b').

Source: Blelloch 1990, "Prefix Sums and Their Applications".
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax


# An array for each of the k leaves, of its shape, with an axis of steps in front.
Vector: TypeAlias = list[Any]


def affine_scan(
    matrix: Any, terms: Vector, start: Sequence[Any], sizes: Vector | None = None, *, reverse: bool
) -> tuple[Vector, Vector | None]:
    """Run a recurrence.

    Args:
        matrix: J at each step, `(steps, k, k, ...)`.
        terms: b at each step, for each row.
        start: d before the first step to run.
        sizes: values at each step whose running maximum is wanted, which costs no more rounds.
        reverse: whether the steps run from the last to the first.

    Returns:
        d after each step, and the running maximum.
    """
    term = jnp.stack(terms, 1)
    first = -1 if reverse else 0
    term = term.at[first].add(times(matrix[first][None], jnp.stack(start)[None])[0])

    def after_both(one: Any, other: Any) -> Any:
        (matrix, term, size), (next_matrix, next_term, next_size) = one, other
        joined = None if size is None else jnp.maximum(size, next_size)
        return product(next_matrix, matrix), times(next_matrix, term) + next_term, joined

    size = None if sizes is None else jnp.stack(sizes, 1)
    _, after, largest = lax.associative_scan(after_both, (matrix, term, size), reverse=reverse)
    return [after[:, row] for row in range(len(terms))], (
        None if largest is None else [largest[:, row] for row in range(len(terms))]
    )


# Matrices are one array, because an array for each entry makes k^3 operations in each round to compile.


def times(matrix: Any, vector: Any) -> Any:
    """The products of matrices `(steps, k, k, ...)` and vectors `(steps, k, ...)`."""
    return _sum(matrix * vector[:, None], 2)


def product(left: Any, right: Any) -> Any:
    """The products of matrices `(steps, k, k, ...)`."""
    return _sum(left[:, :, :, None] * right[:, None], 2)


def _sum(terms: Any, axis: int) -> Any:
    return lax.squeeze(terms, (axis,)) if terms.shape[axis] == 1 else jnp.sum(terms, axis)
