"""One matrix state in a window: from its factors at every step to its reads and its last value."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from rnnscan.engine.analysis.matrix_form import ZERO, Factor, Form
from rnnscan.engine.analysis.matrix_states import MatrixState
from rnnscan.engine.loops.decays import matmul
from rnnscan.engine.loops.matrix_chunks import recurrence
from rnnscan.ir.program import Value


class Factors(NamedTuple):
    """The factors of a state, at one step or stacked: `(..., K)` along its keys, or `(..., V)` along its values.

    The axes `...` are those of the batch, and may have size 1.

    Attributes:
        queries: the factor of the old state of each read, along the keys.
        decay: of the state, along the keys, or of size 1.
        terms: u along the keys and w along the values, of each outer product of the update.
        from_update: the part of each read that the step's update adds, along the values.
        of_update: the factor of each matrix in the update, along the keys.
        of_reads: the factor of each matrix in each read, along the keys.
    """

    queries: list[Any]
    decay: Any
    terms: list[tuple[Any, Any]]
    from_update: list[Any]
    of_update: list[Any]
    of_reads: list[list[Any]]


def matrices_of(state: MatrixState) -> list[Factor]:
    """The matrices that the forms of a state name, which are the same at every step."""
    forms = [state.update, *(read.form for read in state.reads)]
    return [*dict.fromkeys(matrix for form in forms for _, matrix in form.matrices)]


def factors_at_step(state: MatrixState, values: Mapping[Value, Any]) -> Factors:
    """The factors of a state at one step, from the values that they are made of."""
    axes, forms, matrices = state.axes, [read.form for read in state.reads], matrices_of(state)

    def make(factor: Factor) -> Any:
        array = factor.make(values)
        return lax.transpose(array, axes.order) if array.ndim else array.reshape((1,) * axes.rank)

    def along_keys(factor: Factor) -> Any:
        return _repeated(make(factor)[..., 0], state.shape[axes.keys])

    def outer_products(form: Form) -> list[tuple[Any, Any]]:
        size = state.shape[axes.values]
        return [(along_keys(u), _repeated(make(w)[..., 0, :], size)) for u, w in form.terms]

    def from_update(form: Form) -> Any:
        products = (u.sum(-1, keepdims=True) * w for u, w in outer_products(form))
        return sum(products, make(ZERO)[..., 0])

    def coefficients(form: Form) -> list[Any]:
        coefficient_of = {matrix: coefficient for coefficient, matrix in form.matrices}
        return [along_keys(coefficient_of.get(matrix, ZERO)) for matrix in matrices]

    return Factors(
        [along_keys(form.decay) for form in forms],
        make(state.update.decay)[..., 0],
        outer_products(state.update),
        [*map(from_update, forms)],
        coefficients(state.update),
        [*map(coefficients, forms)],
    )


def in_order(state: MatrixState, leaf: Any) -> Any:
    """A leaf of the carry in the order of its factors, `(..., K, V)`."""
    return lax.transpose(leaf.reshape(state.shape), state.axes.order)


def finish(
    state: MatrixState, factors: Factors, fixed: Mapping[Value, Any], reads: Sequence[Any], last: Any, *, rounds: bool
) -> tuple[list[Any], Any]:
    """Add the terms of the matrices, and those of each step's update.

    Args:
        state: the state.
        factors: its factors, stacked.
        fixed: the values that are the same at every step.
        reads: y of each read, `(T, ..., V)`.
        last: the state after the last step, `(..., K, V)`.
        rounds: whether to run recurrences in a logarithmic number of rounds.

    Returns:
        The result of each read at every step, and the leaf of the carry after the last one.
    """
    order, totals = state.axes.order, [*reads]
    for number, matrix in enumerate(matrices_of(state)):
        array = lax.transpose(jnp.broadcast_to(matrix.make(fixed), state.shape), order).astype(last.dtype)
        before, final = _sums(factors.decay, factors.of_update[number], rounds=rounds)
        for place, (query, coefficients) in enumerate(zip(factors.queries, factors.of_reads, strict=True)):
            weights = jnp.moveaxis(query * before + coefficients[number], 0, -2)
            totals[place] = totals[place] + jnp.moveaxis(matmul(weights, array), -2, 0)
        last = last + final[..., None] * array
    triples = zip(state.reads, totals, factors.from_update, strict=True)
    results = [read.finish(total + added, state.axes) for read, total, added in triples]
    last = lax.transpose(last, [order.index(axis) for axis in range(len(order))])
    return results, last.reshape(state.leaf.shape).astype(state.leaf.dtype)


def _repeated(array: Any, size: int) -> Any:
    """An array whose last axis has this size, or has size 1 and is repeated."""
    return jnp.broadcast_to(array, (*array.shape[:-1], size))


def _sums(decay: Any, added: Any, *, rounds: bool) -> tuple[Any, Any]:
    """`r' = decay * r + added` from zero: r before each step, and the last one."""
    decay, added = (jnp.broadcast_to(leaf, jnp.broadcast_shapes(decay.shape, added.shape)) for leaf in (decay, added))
    return recurrence(decay, added, lax.full_like(added[0], 0), rounds=rounds)
