"""Search a step for matrix states, and split it into their loops, other loops, and work that is batched over time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rnnscan.engine.analysis.cycle import cycles_of
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.matrix_form import NoFormError
from rnnscan.engine.analysis.matrix_groups import Group, grouped, with_groups
from rnnscan.engine.analysis.matrix_states import MatrixState, find_state
from rnnscan.engine.analysis.split import Loop, Split, split
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.ir.program import outputs_of


@dataclass(frozen=True)
class MatrixSearch:
    """The matrix states of a step, if it has any.

    Attributes:
        groups: the states that run in chunkwise form.
        split: how the step runs with them; None if no leaf has the form.
        reasons: why linear leaves with several axes do not have the form, by position in the carry.
    """

    groups: tuple[Group, ...] = ()
    split: Split | None = None
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def scans(self) -> list[Loop]:
        """The other loops, which run as scans."""
        return [] if self.split is None else [loop for loop in self.split.loops if loop.is_step_by_step]


def find_matrix_states(step: FlatStep, heuristics: Heuristics) -> MatrixSearch:
    """Find the matrix states of a step.

    Args:
        step: the step.
        heuristics: the choices of the platform for it.

    Returns:
        The states, and why other leaves are none.
    """
    least = heuristics.least_state
    if least is None:
        return MatrixSearch()
    large = [sum(isinstance(size, int) and size >= least for size in leaf.shape) for leaf in step.carry]
    if max(large, default=0) < 2:
        return MatrixSearch()
    cycles = cycles_of(step.program.equations, step.carry, step.new_carry)
    linear = [members[0] for members, cycle in cycles if large[members[0]] and cycle.is_linear()]
    matrices = [index for index in linear if large[index] >= 2]
    states, reasons = _find_states(matrices, partial(find_state, step, least=least))
    if not states:
        return MatrixSearch(reasons=reasons)
    other_linear = [index for index in linear if index not in states]
    vectors, _ = _find_states(other_linear, partial(find_state, step, least=least, as_vectors=True))
    groups = tuple(grouped(states.values(), vectors.values(), step))
    program = replace(step.program, stacked=step.program.stacked[: step.y_size + len(step.kept_labels)])
    search = MatrixSearch(groups, split(with_groups(program, groups), heuristics, scans=True))
    reason = _why_not_scans(step, search.scans)
    if reason is not None:
        return MatrixSearch(reasons={**reasons, **dict.fromkeys(states, reason)})
    joined = {state.index for group in groups for state in group.states}
    return replace(search, reasons={index: reason for index, reason in reasons.items() if index not in joined})


def _find_states(
    indices: Iterable[int], find: Callable[[int], MatrixState]
) -> tuple[dict[int, MatrixState], dict[int, str]]:
    """The carry leaves that have the form, and why the others do not."""
    states, reasons = {}, {}
    for index in indices:
        try:
            states[index] = find(index)
        except NoFormError as error:
            reasons[index] = str(error)
    return states, reasons


def _why_not_scans(step: FlatStep, loops: Sequence[Loop]) -> str | None:
    """Why the other loops cannot run as scans; None if they can."""
    for loop in loops:
        if not loop.carry:
            return f"the step has a {loop.body[0].name}, which runs step by step"
        if not {*step.kept[: len(step.kept_labels)]}.isdisjoint(outputs_of(loop.body)):
            return "a kept name is in another loop of the step"
    return None
