"""Matrix states that run as one: with the same decay and keys, read by the same queries, their values side by side.

The normalizer of linear attention, `n' = a * n + k`, is a matrix state with one value. Alone it would need as many
products of queries and keys as `S' = a * S + k v^T` does for all its values. Together with them it is one more column.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import promoted
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.matrix_form import ZERO
from rnnscan.engine.analysis.matrix_states import MatrixState, later_values
from rnnscan.engine.loops.matrix_chunks import run_chunks
from rnnscan.engine.loops.matrix_parts import Ordered, Parts, Stacks
from rnnscan.ir.program import Value


@dataclass(frozen=True)
class Group:
    """Matrix states that run as one.

    Attributes:
        states: the states. The first one has the keys and the queries of all.
    """

    states: tuple[MatrixState, ...]

    @property
    def needs(self) -> frozenset[Value]:
        """The values that the factors of the states are made of."""
        return frozenset().union(*(state.needs for state in self.states))

    def can_hold(self, state: MatrixState, step: FlatStep) -> bool:
        """Whether another state of the step can run with these."""
        first = self.states[0]
        if state.key_type != first.key_type or _decay(state) != _decay(first):
            return False
        if not ({*_keys(state)} <= {*_keys(first)} and {*_queries(state)} <= {*_queries(first)}):
            return False
        of_these = [later_values(step, other.index) for other in self.states]
        return all(map(state.needs.isdisjoint, of_these)) and self.needs.isdisjoint(later_values(step, state.index))

    def run(
        self,
        stacks: Sequence[Stacks],
        matrices: Sequence[Sequence[Any]],
        starts: Sequence[Any],
        chunk: int,
        *,
        rounds: bool,
    ) -> list[tuple[list[Any], Any]]:
        """Run over the steps.

        Args:
            stacks: the factors of each state, stacked.
            matrices: the values of `Parts.matrices` of each state.
            starts: each state before the first step.
            chunk: the steps of a chunk.
            rounds: whether to run recurrences in a logarithmic number of rounds.

        Returns:
            Of each state the results of `Parts.finish`.
        """
        every = [Parts.of(state) for state in self.states]
        of_states = [parts.ordered(*pair) for parts, *pair in zip(every, stacks, starts, strict=True)]
        dtype = promoted(
            *(leaf for ordered in of_states for leaf in (ordered.start, *ordered.queries, *chain(*ordered.terms)))
        )
        of_states = [ordered.astype(dtype) for ordered in of_states]
        queries, joint = self._side_by_side(of_states)
        reads, last = run_chunks(*joint, chunk, rounds=rounds)
        results, begin = [], 0
        for number, parts in enumerate(every):
            end = begin + of_states[number].start.shape[-1]
            of_state = [reads[queries.index(key)][..., begin:end] for key in _queries(parts.state)]
            state = of_states[number], stacks[number], matrices[number]
            results.append(parts.finish(*state, of_state, last[..., begin:end], rounds=rounds))
            begin = end
        return results

    def _side_by_side(self, of_states: Sequence[Ordered]) -> tuple[list[Hashable], Ordered]:
        """The states as one, with different queries and keys, and the keys of the queries' factors."""
        first, starts = of_states[0], [ordered.start for ordered in of_states]
        queries = dict(zip(_queries(self.states[0]), first.queries, strict=True))
        keys = {key: u for key, (u, _) in zip(_keys(self.states[0]), first.terms, strict=True)}
        written: dict[Hashable, list[Any]] = {key: [None] * len(starts) for key in keys}
        for number, (state, ordered) in enumerate(zip(self.states, of_states, strict=True)):
            for key, (_, w) in zip(_keys(state), ordered.terms, strict=True):
                so_far = written[key][number]
                written[key][number] = w if so_far is None else so_far + w
        terms = []
        for key, u in keys.items():
            pairs = zip(starts, written[key], strict=True)
            # A state without this key adds nothing.
            terms.append(
                (u, _joined([lax.full_like(start[None, ..., 0, :], 0) if w is None else w for start, w in pairs]))
            )
        return [*queries], Ordered([*queries.values()], first.decay, terms, _joined(starts))


def grouped(states: Iterable[MatrixState], companions: Iterable[MatrixState], step: FlatStep) -> list[Group]:
    """The groups in which states run.

    Args:
        states: states that run in any case.
        companions: states that run only in a group with one of those.
        step: their step.
    """
    groups: list[Group] = []
    for state, runs_alone in [*((state, True) for state in states), *((state, False) for state in companions)]:
        place = next((place for place, group in enumerate(groups) if group.can_hold(state, step)), None)
        if place is not None:
            groups[place] = Group((*groups[place].states, state))
        elif runs_alone:
            groups.append(Group((state,)))
    return groups


def _decay(state: MatrixState) -> Hashable:
    return (state.update.decay or ZERO).key


def _keys(state: MatrixState) -> list[Hashable]:
    return [u.key for u, _ in state.update.terms]


def _queries(state: MatrixState) -> list[Hashable]:
    return [(read.form.decay or ZERO).key for read in state.reads]


def _joined(leaves: Sequence[Any]) -> Any:
    """Leaves side by side along the last axis. The others may have size 1."""
    if len(leaves) == 1:
        return leaves[0]
    batch = jnp.broadcast_shapes(*(leaf.shape[:-1] for leaf in leaves))
    return jnp.concatenate([jnp.broadcast_to(leaf, (*batch, leaf.shape[-1])) for leaf in leaves], -1)
