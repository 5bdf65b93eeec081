"""Matrix states that run as one: with the same decay and keys, read by the same queries, their values side by side.

The normalizer of linear attention, `n' = a * n + k`, is a matrix state with one value. Alone it would need as many
products of queries and keys as `S' = a * S + k v^T` does for all its values. Together with them it is one more column.

A group is one equation of a step, so the rest of the engine sees a loop of one operation.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from jax.extend import core

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.matrix_states import MatrixState, later_values
from rnnscan.ir.dataflow import between, depending, needed, partition
from rnnscan.ir.program import Equation, Program, Value, inputs_of, outputs_of, values_of


@dataclass(frozen=True)
class Group:
    """Matrix states that run as one.

    Attributes:
        states: the states. The first one has the keys and the queries of all.
        equations: their update and their reads, of `needs` and other inputs of the step.
    """

    states: tuple[MatrixState, ...]
    equations: tuple[Equation, ...] = ()

    @property
    def needs(self) -> frozenset[Value]:
        """The values that the factors of the states are made of."""
        return frozenset().union(*(state.needs for state in self.states))

    @property
    def results(self) -> list[Value]:
        """The values that are read of the states."""
        return [read.result for state in self.states for read in state.reads]

    def can_hold(self, state: MatrixState, step: FlatStep) -> bool:
        """Whether another state of the step can run with these."""
        first = self.states[0]
        if state.key_type != first.key_type or state.update.decay.key != first.update.decay.key:
            return False
        if not ({*keys_of(state)} <= {*keys_of(first)} and {*queries_of(state)} <= {*queries_of(first)}):
            return False
        of_these = [later_values(step, other.index) for other in self.states]
        return all(map(state.needs.isdisjoint, of_these)) and self.needs.isdisjoint(later_values(step, state.index))


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


def keys_of(state: MatrixState) -> list[Hashable]:
    """What identifies the factor u of each outer product that a state adds."""
    return [u.key for u, _ in state.update.terms]


def queries_of(state: MatrixState) -> list[Hashable]:
    """What identifies the query of each read of a state."""
    return [read.form.decay.key for read in state.reads]


# `(values, states) -> (reads of the states, new states)`. It is never bound: `loops/recurrences/matrix.py` runs it.
_matrix_states = core.Primitive("rnnscan_matrix_states")


def with_groups(program: Program, groups: Sequence[Group]) -> Program:
    """A step's program with one equation for each group of its matrix states."""
    equations = needed(program.equations, program.outputs)
    for group in groups:
        hidden = {*group.results}.union(*(state.inside for state in group.states))
        rest = [equation for equation in equations if hidden.isdisjoint(equation.outputs)]
        after, before = partition(rest, depending(rest, group.results))
        leaves = [state.leaf for state in group.states]
        new_leaves = [program.new_carry[state.index] for state in group.states]
        outputs = tuple(values_of([*group.results, *new_leaves]))
        group = replace(group, equations=tuple(between(equations, group.needs.union(leaves), outputs)))
        # What its equations make is no operand: as one it would be stacked, and get a cotangent of zeros.
        needs = group.needs.union(inputs_of(group.equations)).difference(outputs_of(group.equations))
        others = [leaf for leaf in program.carry if leaf not in leaves]
        given = (*program.invariant, *program.known, *others, *outputs_of(before))
        reads = [value for value in given if value in needs]
        step = Equation(_matrix_states, {"group": group}, (*reads, *leaves), outputs)
        equations = [*before, step, *after]
    return replace(program, equations=tuple(equations))


def group_of(equations: Sequence[Equation]) -> Group | None:
    """The matrix states that equations are a step of, if they are."""
    is_one = len(equations) == 1 and equations[0].primitive is _matrix_states
    return equations[0].params["group"] if is_one else None
