"""One matrix state in a window: from its factors at every step to its reads and its last value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.analysis.matrix_form import ZERO, Factor, Form
from rnnscan.engine.analysis.matrix_states import MatrixState
from rnnscan.engine.loops.decays import matmul
from rnnscan.engine.loops.matrix_chunks import recurrence
from rnnscan.ir.program import Value


class Stacks(NamedTuple):
    """The factors of a state, at one step or stacked. All have the rank of the state, with size 1 along its other axis.

    Attributes:
        decay: of the state.
        terms: u and w of each outer product of the update.
        queries: the factor of the old state of each read.
        from_update: the part of each read that the step's update adds.
        of_update: the factor of each matrix in the update.
        of_reads: the factor of each matrix in each read.
    """

    decay: Any
    terms: list[tuple[Any, Any]]
    queries: list[Any]
    from_update: list[Any]
    of_update: list[Any]
    of_reads: list[list[Any]]


class Ordered(NamedTuple):
    """The factors that run over the steps, in the order `(T, batch, keys, values)`.

    Attributes:
        queries, decay, terms: those of `run_chunks`.
        start: the state before the first step, `(..., K, V)`.
    """

    queries: list[Any]
    decay: Any
    terms: list[tuple[Any, Any]]
    start: Any

    def astype(self, dtype: Any) -> "Ordered":
        """The same in this dtype."""
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self)


@dataclass(frozen=True)
class Parts:
    """The parts of a matrix state.

    Attributes:
        state: the state.
    """

    state: MatrixState

    @cached_property
    def matrices(self) -> tuple[Factor, ...]:
        """The matrices that its forms name, which are the same at every step."""
        forms = [self.state.update, *(read.form for read in self.state.reads)]
        return tuple(dict.fromkeys(matrix for form in forms for _, matrix in form.matrices))

    def at_step(self, values: Mapping[Value, Any]) -> Stacks:
        """The factors at one step."""
        update, axes = self.state.update, self.state.axes

        def make(factor: Factor | None, along: int | None = None) -> Any:
            array = (factor or ZERO).make(values)
            array = array if array.ndim else array.reshape((1,) * axes.rank)
            array = jnp.expand_dims(array, -1) if axes.are_vectors else array
            if along is None or array.shape[along] != 1:
                return array
            shape = list(array.shape)
            shape[along] = self._shape[along]
            return jnp.broadcast_to(array, shape)

        def coefficients(form: Form) -> list[Any]:
            coefficient_of = {matrix: coefficient for coefficient, matrix in form.matrices}
            return [make(coefficient_of.get(matrix), axes.keys) for matrix in self.matrices]

        forms = [read.form for read in self.state.reads]
        return Stacks(
            make(update.decay),
            [(make(u, axes.keys), make(w, axes.values)) for u, w in update.terms],
            [make(form.decay, axes.keys) for form in forms],
            [self._from_update(form, make) for form in forms],
            coefficients(update),
            [coefficients(form) for form in forms],
        )

    def _from_update(self, form: Form, make: Callable[..., Any]) -> Any:
        """The sum over the keys of the outer products of a form."""
        axes = self.state.axes
        pairs = [(make(u, axes.keys), make(w, axes.values)) for u, w in form.terms]
        return sum((u.sum(axes.keys, keepdims=True) * w for u, w in pairs), make(None))

    def ordered(self, stacks: Stacks, start: Any) -> Ordered:
        """The factors that run over the steps.

        Args:
            stacks: the factors, stacked.
            start: the state before the first step.
        """
        order = self._order
        start = jnp.expand_dims(start, -1) if self.state.axes.are_vectors else start
        return Ordered(
            [_moved(leaf, order)[..., 0] for leaf in stacks.queries],
            _moved(stacks.decay, order)[..., 0],
            [(_moved(u, order)[..., 0], _moved(w, order)[..., 0, :]) for u, w in stacks.terms],
            lax.transpose(start, order),
        )

    def finish(
        self,
        ordered: Ordered,
        stacks: Stacks,
        matrices: Sequence[Any],
        reads: Sequence[Any],
        last: Any,
        *,
        rounds: bool,
    ) -> tuple[list[Any], Any]:
        """Add the terms of the matrices, and those of each step's update.

        Args:
            ordered: what has run.
            stacks: the factors, stacked.
            matrices: the values of `matrices`.
            reads: y of each read, `(T, ..., V)`.
            last: the state after the last step, `(..., K, V)`.
            rounds: whether to run recurrences in a logarithmic number of rounds.

        Returns:
            The sum over the keys of each read, `(T, ...)`, which keeps the axis of the keys with size 1; and the state
            after the last step.
        """
        order, dtype = self._order, last.dtype
        totals = [*reads]
        for number, matrix in enumerate(matrices):
            matrix = jnp.expand_dims(matrix, -1) if self.state.axes.are_vectors and matrix.ndim else matrix
            matrix = lax.transpose(jnp.broadcast_to(matrix, self._shape), order).astype(dtype)
            added, *of_reads = (
                _moved(leaf[number], order)[..., 0].astype(dtype) for leaf in (stacks.of_update, *stacks.of_reads)
            )
            before, final = _sums(ordered.decay, added, rounds=rounds)
            for place, (query, coefficient) in enumerate(zip(ordered.queries, of_reads, strict=True)):
                weights = jnp.moveaxis(query * before + coefficient, 0, -2)
                read = matmul(weights, matrix)
                totals[place] = totals[place] + jnp.moveaxis(read, -2, 0)
            last = last + final[..., None] * matrix
        back = [order.index(axis) for axis in range(len(order))]
        totals = [
            lax.transpose(jnp.expand_dims(total, -2), [0, *(axis + 1 for axis in back)]) + added
            for total, added in zip(totals, stacks.from_update, strict=True)
        ]
        last = lax.transpose(last, back).astype(self.state.leaf.dtype)
        if self.state.axes.are_vectors:
            return [total[..., 0] for total in totals], last[..., 0]
        return totals, last

    @property
    def _shape(self) -> tuple[Any, ...]:
        """The shape of the state, with an axis of values."""
        return (*self.state.leaf.shape, 1) if self.state.axes.are_vectors else self.state.leaf.shape

    @property
    def _order(self) -> list[int]:
        """Its axes: the batch, the keys, the values."""
        axes = self.state.axes
        return [*axes.batch, axes.keys, axes.values]


def _moved(leaf: Any, order: Sequence[int]) -> Any:
    """A stack `(T, ...)` with the axes of each step in this order."""
    return lax.transpose(leaf, [0, *(axis + 1 for axis in order)])


def _sums(decay: Any, added: Any, *, rounds: bool) -> tuple[Any, Any]:
    """`r' = decay * r + added` from zero: r before each step, and the last one."""
    decay, added = (jnp.broadcast_to(leaf, jnp.broadcast_shapes(decay.shape, added.shape)) for leaf in (decay, added))
    return recurrence(decay, added, lax.full_like(added[0], 0), rounds=rounds)
