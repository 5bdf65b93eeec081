"""Affine recurrences of small blocks: `d_t = J_t d_{t-1} + b_t`, element by element, as an associative scan.

The k leaves of a loop are k numbers at each element, and J_t is a k x k matrix there. Two steps make one,

    d -> J d + b,  d -> J' d + b'    become    d -> (J' J) d + (J' b + b').

Source: Blelloch 1990, "Prefix Sums and Their Applications".
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax


# One array for each entry, all of the shape of a leaf, with an axis of steps in front.
Vector: TypeAlias = list[Any]
Matrix: TypeAlias = list[list[Any]]


def affine_scan(
    matrices: Matrix, terms: Vector, start: Sequence[Any], sizes: Vector | None = None, *, reverse: bool
) -> tuple[Vector, Vector | None]:
    """Run a recurrence.

    Args:
        matrices: J at each step.
        terms: b at each step.
        start: d before the first step to run.
        sizes: values at each step whose running maximum is wanted, which costs no more rounds.
        reverse: whether the steps run from the last to the first.

    Returns:
        d after each step, and the running maximum.
    """
    first = -1 if reverse else 0
    moved = times([[entry[first] for entry in row] for row in matrices], start)
    terms = [term.at[first].add(own) for term, own in zip(terms, moved, strict=True)]

    def after_both(first: Any, second: Any) -> Any:
        (matrix, term, size), (next_matrix, next_term, next_size) = first, second
        joined = None if size is None else [*map(jnp.maximum, size, next_size)]
        after = [total + own for total, own in zip(times(next_matrix, term), next_term, strict=True)]
        columns = [times(next_matrix, column) for column in zip(*matrix, strict=True)]
        return [list(row) for row in zip(*columns, strict=True)], after, joined

    _, after, largest = lax.associative_scan(after_both, (matrices, terms, sizes), reverse=reverse)
    return after, largest


def times(matrix: Sequence[Sequence[Any]], vector: Sequence[Any]) -> Vector:
    """The product of a matrix and a vector at each element."""
    rows = []
    for row in matrix:
        total, *others = [factor * entry for factor, entry in zip(row, vector, strict=True)]
        for other in others:
            total = total + other
        rows.append(total)
    return rows
