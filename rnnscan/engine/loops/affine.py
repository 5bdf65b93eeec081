"""Affine recurrences of small blocks: `d_t = J_t d_{t-1} + b_t`, element by element, in parallel over time.

The k leaves of a loop are k numbers at each element, and J_t is a k x k matrix there. Two steps make one,

    d -> J d + b,  d -> J' d + b'    become    d -> (J' J) d + (J' b + b').

Source: Blelloch 1990, "Prefix Sums and Their Applications".
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.loops.in_blocks import run_in_blocks


def affine_scan(matrix: Any, terms: Any, start: Any, sizes: Any = None, *, reverse: bool) -> tuple[Any, Any]:
    """Run a recurrence.

    Args:
        matrix: J at each step, `(steps, k, k, ...)`.
        terms: b at each step, `(steps, k, ...)`.
        start: d before the first step to run, `(k, ...)`.
        sizes: values of at least 0 at each step, whose running maximum is wanted; None: there are none.
        reverse: whether the steps run from the last to the first.

    Returns:
        d after each step, and the running maximum.
    """

    def compose(earlier: Any, later: Any) -> Any:
        (matrix, term, size), (next_matrix, next_term, next_size) = earlier, later
        largest = jax.tree.map(jnp.maximum, size, next_size)
        return product(next_matrix, matrix), times(next_matrix, term) + next_term, largest

    def apply(step: Any, state: Any) -> Any:
        (matrix, term, size), (moved, largest) = step, state
        return times(matrix, moved) + term, jax.tree.map(jnp.maximum, largest, size)

    first = start, jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), sizes)
    after, largest = run_in_blocks(compose, apply, (matrix, terms, sizes), first, reverse=reverse)
    return after, largest


# Matrices are one array, because an array for each entry makes k^3 operations in each round to compile.


def times(matrix: Any, vector: Any) -> Any:
    """The products of matrices `(steps, k, k, ...)` and vectors `(steps, k, ...)`."""
    return _sum(matrix * vector[:, None], 2)


def product(left: Any, right: Any) -> Any:
    """The products of matrices `(steps, k, k, ...)`."""
    return _sum(left[:, :, :, None] * right[:, None], 2)


def _sum(terms: Any, axis: int) -> Any:
    return lax.squeeze(terms, (axis,)) if terms.shape[axis] == 1 else jnp.sum(terms, axis)
