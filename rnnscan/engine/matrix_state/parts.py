"""Run one matrix state over a window: from its factors at every step to its reads and its last value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from rnnscan._dtypes import promoted
from rnnscan.engine.matrix_state.chunks import recurrence, run_chunks
from rnnscan.engine.matrix_state.find import MatrixState
from rnnscan.engine.matrix_state.form import ZERO, Factor, Form
from rnnscan.ir.program import Value


class Stacks(NamedTuple):
    """The factors of a state, at one step or stacked. All have the rank of the state, with size 1 along its other axis.

    Attributes:
        decay: of the state.
        terms: u and w of each outer product of the update.
        queries: the factor of the old state of each read.
        own: of each read, the part that the step's own update makes.
        of_update: the factor of each matrix in the update.
        of_reads: the factor of each matrix in each read.
    """

    decay: Any
    terms: list[tuple[Any, Any]]
    queries: list[Any]
    own: list[Any]
    of_update: list[Any]
    of_reads: list[list[Any]]


@dataclass(frozen=True)
class Parts:
    """A matrix state, with the matrices that its forms name.

    Attributes:
        state: the state.
        matrices: matrices that are the same at every step.
    """

    state: MatrixState
    matrices: tuple[Factor, ...]

    @staticmethod
    def of(state: MatrixState) -> "Parts":
        """The parts of a state."""
        forms = [state.update, *(read.form for read in state.reads)]
        return Parts(state, tuple(dict.fromkeys(matrix for form in forms for _, matrix in form.matrices)))

    def at_step(self, values: Mapping[Value, Any]) -> Stacks:
        """The factors at one step."""
        update, axes = self.state.update, self.state.axes

        def make(factor: Factor | None, along: int | None = None) -> Any:
            array = (factor or ZERO).make(values)
            array = array if array.ndim else array.reshape((1,) * axes.rank)
            if along is None or array.shape[along] != 1:
                return array
            shape = list(array.shape)
            shape[along] = self.state.leaf.shape[along]
            return jnp.broadcast_to(array, shape)

        def coefficients(form: Form) -> list[Any]:
            found = {matrix: coefficient for coefficient, matrix in form.matrices}
            return [make(found.get(matrix), axes.keys) for matrix in self.matrices]

        forms = [read.form for read in self.state.reads]
        return Stacks(
            make(update.decay),
            [(make(u, axes.keys), make(w, axes.values)) for u, w in update.terms],
            [make(form.decay, axes.keys) for form in forms],
            [self._own(form, make) for form in forms],
            coefficients(update),
            [coefficients(form) for form in forms],
        )

    def _own(self, form: Form, make: Callable[..., Any]) -> Any:
        """The sum over the keys of the outer products of a form."""
        axes = self.state.axes
        pairs = [(make(u, axes.keys), make(w, axes.values)) for u, w in form.terms]
        return sum((u.sum(axes.keys, keepdims=True) * w for u, w in pairs), make(None))

    def run(
        self, stacks: Stacks, matrices: Sequence[Any], start: Any, chunk: int, *, rounds: bool
    ) -> tuple[list[Any], Any]:
        """Run over the steps.

        Args:
            stacks: the factors, stacked.
            matrices: the values of `matrices`.
            start: the state before the first step.
            chunk: the steps of a chunk.
            rounds: whether to run recurrences in a logarithmic number of rounds.

        Returns:
            The sum over the keys of each read, `(T, ...)`, which keeps the axis of the keys with size 1; and the state
            after the last step.
        """
        axes, batch = self.state.axes, self.state.batch_axes
        order = [*batch, axes.keys, axes.values]
        dtype = promoted(start, *(leaf for group in stacks.terms for leaf in group), *stacks.queries)

        def by_key(leaf: Any) -> Any:
            return _moved(leaf, order)[..., 0].astype(dtype)

        def by_value(leaf: Any) -> Any:
            return _moved(leaf, order)[..., 0, :].astype(dtype)

        start = lax.transpose(start, order)
        queries, decay = [*map(by_key, stacks.queries)], by_key(stacks.decay)
        terms = [(by_key(u), by_value(w)) for u, w in stacks.terms]
        reads, last = run_chunks(queries, decay, terms, start.astype(dtype), chunk, rounds=rounds)
        for number, matrix in enumerate(matrices):
            matrix = lax.transpose(jnp.broadcast_to(matrix, self.state.leaf.shape), order).astype(dtype)
            before, final = _sums(decay, by_key(stacks.of_update[number]), rounds=rounds)
            for place, (query, own) in enumerate(zip(queries, stacks.of_reads, strict=True)):
                weights = jnp.moveaxis(query * before + by_key(own[number]), 0, -2)
                read = jnp.matmul(weights, matrix, precision=lax.Precision.HIGHEST)
                reads[place] = reads[place] + jnp.moveaxis(read, -2, 0)
            last = last + final[..., None] * matrix
        back = [order.index(axis) for axis in range(len(order))]
        reads = [
            lax.transpose(jnp.expand_dims(read, -2), [0, *(axis + 1 for axis in back)]) + own
            for read, own in zip(reads, stacks.own, strict=True)
        ]
        return reads, lax.transpose(last, back).astype(self.state.leaf.dtype)


def _moved(leaf: Any, order: Sequence[int]) -> Any:
    """A stack `(T, ...)` with the axes of each step in this order."""
    return lax.transpose(leaf, [0, *(axis + 1 for axis in order)])


def _sums(decay: Any, added: Any, *, rounds: bool) -> tuple[Any, Any]:
    """`r' = decay * r + added` from zero: r before each step, and the last one."""
    decay, added = (jnp.broadcast_to(leaf, jnp.broadcast_shapes(decay.shape, added.shape)) for leaf in (decay, added))
    return recurrence(decay, added, lax.full_like(added[0], 0), rounds=rounds)
