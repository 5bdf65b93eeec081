"""Cut a step with matrix states into stages that run one after the other, each over all steps of a window.

A stage runs the work with known operands, batched over time; then it runs other parts of the carry by a scan, and
matrix states in chunkwise form. The next stage knows their results. Layers whose states feed each other are several
stages.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.linear import is_linear
from rnnscan.engine.analysis.matrix_form import NoFormError
from rnnscan.engine.analysis.matrix_states import MatrixState, find_state
from rnnscan.engine.costs.costs import unbatchable
from rnnscan.engine.loops.matrix_groups import Group, grouped
from rnnscan.ir.components import Components
from rnnscan.ir.dataflow import depending, determined, needed
from rnnscan.ir.program import Equation, Program, Value, inputs_of, outputs_of, values_of


@dataclass(frozen=True)
class Stage:
    """A stage. See the module's docstring.

    Attributes:
        batched: equations that run batched over time.
        loop: the scan over other parts of the carry; its outputs are their leaves before each step. None if none.
        leaves: the positions of these leaves in the carry of the step.
        groups: the matrix states.
    """

    batched: tuple[Equation, ...]
    loop: FlatStep | None = None
    leaves: tuple[int, ...] = ()
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Stages:
    """A step with matrix states.

    Attributes:
        step: the step.
        invariant: equations that do not depend on the step.
        stages: the stages; the last one has neither loop nor states.
        groups: the states of all stages.
    """

    step: FlatStep
    invariant: tuple[Equation, ...]
    stages: tuple[Stage, ...]
    groups: tuple[Group, ...]

    @property
    def states(self) -> list[MatrixState]:
        """The states of all groups."""
        return [state for group in self.groups for state in group.states]


@dataclass(frozen=True)
class MatrixSearch:
    """The matrix states of a step, if it has any.

    Attributes:
        stages: how to run it; None if no leaf has the form.
        reasons: why linear leaves with several axes do not have the form, by position in the carry.
    """

    stages: Stages | None
    reasons: dict[int, str]


def matrix_candidates(step: FlatStep, least: int) -> list[int]:
    """The positions of carry leaves that may be matrix states: linear recurrences with enough keys.

    There are none if no leaf has two axes of at least `least`.
    """
    large = [_count_large(leaf, least) for leaf in step.carry]
    if not any(count >= 2 for count in large):
        return []
    equations = step.program.equations
    components = Components(equations, step.carry, step.new_carry)
    return [
        members[0]
        for members, cycle in zip(components.members, components.by_group(equations), strict=True)
        if len(members) == 1
        and large[members[0]]
        and is_linear(cycle, step.carry[members[0]], step.new_carry[members[0]])
    ]


def find_stages(step: FlatStep, linear: Sequence[int], *, least: int) -> MatrixSearch:
    """Find the matrix states of a step, and its stages.

    Args:
        step: the step.
        linear: the positions of the carry leaves that are linear recurrences.
        least: the least number of keys and of values.

    Returns:
        The stages, and why other leaves are not matrix states.
    """
    fixed = determined(step.program.equations, step.constants)
    matrices = [index for index in linear if _count_large(step.carry[index], least) >= 2]
    states, reasons = _find_states(matrices, partial(find_state, step, fixed=fixed, least=least))
    if not states:
        return MatrixSearch(None, reasons)
    other_linear = [index for index in linear if index not in states]
    vectors, _ = _find_states(other_linear, partial(find_state, step, fixed=fixed, least=least, as_vectors=True))
    groups = grouped(states.values(), vectors.values(), step)
    try:
        stages = _stages(step, fixed, groups)
    except NoFormError as error:
        return MatrixSearch(None, {**reasons, **dict.fromkeys(states, str(error))})
    joined = {state.index for state in stages.states}
    return MatrixSearch(stages, {index: reason for index, reason in reasons.items() if index not in joined})


def _count_large(leaf: Value, least: int) -> int:
    return sum(isinstance(size, int) and size >= least for size in leaf.shape)


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


def _stages(step: FlatStep, fixed: set[Value], groups: Sequence[Group]) -> Stages:
    equations = needed(step.program.equations, step.program.outputs)
    states = {state.index: state for group in groups for state in group.states}
    reads = {read.result for state in states.values() for read in state.reads}
    hidden = {value for state in states.values() for value in state.inside}
    invariant = tuple(equation for equation in equations if fixed.issuperset(equation.outputs))
    # A state makes its reads; no equation makes the values in between.
    open_equations = [
        equation for equation in equations if not {*equation.outputs} & (reads | hidden) and equation not in invariant
    ]
    components = Components(equations, step.carry, step.new_carry).members
    waiting = [members for members in components if members[0] not in states]
    waiting_groups = [*groups]
    known = {*fixed, *step.x}
    stages = []
    while True:
        known = determined(open_equations, known)
        batched = [equation for equation in open_equations if known.issuperset(equation.outputs)]
        _check_batchable(batched)
        open_equations = [equation for equation in open_equations if equation not in batched]
        loop, leaves = _loop(step, open_equations, waiting, known, fixed)
        ready = [group for group in waiting_groups if group.needs <= known]
        if loop is None and not ready:
            break
        waiting = [members for members in waiting if members[0] not in leaves]
        waiting_groups = [group for group in waiting_groups if group not in ready]
        known |= {step.carry[index] for index in leaves}
        known |= {read.result for group in ready for state in group.states for read in state.reads}
        stages.append(Stage(tuple(batched), loop, leaves, tuple(ready)))
    if waiting or waiting_groups or open_equations:
        raise NoFormError("the step has work that waits for it in another way")
    return Stages(step, invariant, (*stages, Stage(tuple(batched))), tuple(groups))


def _check_batchable(equations: Sequence[Equation]) -> None:
    for equation in equations:
        if unbatchable(equation):
            raise NoFormError(f"the step has a {equation.name}, which runs step by step")


def _loop(
    step: FlatStep,
    equations: Sequence[Equation],
    waiting: Sequence[tuple[int, ...]],
    known: set[Value],
    fixed: set[Value],
) -> tuple[FlatStep | None, tuple[int, ...]]:
    """A scan over the parts of the carry that wait for nothing unknown, and their leaves."""
    leaves: list[int] = []
    for members in waiting:
        member_leaves = {step.carry[index] for index in members}
        new = [step.new_carry[index] for index in members]
        body = needed(equations, new)
        if known.union(member_leaves, outputs_of(body)).issuperset({*inputs_of(body), *values_of(new)}):
            leaves += members
    if not leaves:
        return None, ()
    leaves.sort()
    carry = tuple(step.carry[index] for index in leaves)
    new_carry = tuple(step.new_carry[index] for index in leaves)
    cycle = tuple(needed(equations, new_carry))
    if not depending(cycle, carry).isdisjoint({*step.kept} & {*outputs_of(cycle)}):
        raise NoFormError("a kept name is in another loop of the step")
    read = {*inputs_of(cycle), *values_of(new_carry)} - {*carry, *outputs_of(cycle)}
    # In the order of the step's values, so that equal steps make equal programs.
    order = [*step.constants, *step.x, *outputs_of(step.program.equations), *step.carry]
    program = Program(
        cycle,
        invariant=tuple(value for value in order if value in read and value in fixed),
        known=tuple(value for value in order if value in read and value not in fixed),
        carry=carry,
        new_carry=new_carry,
        stacked=carry,
    )
    size = len(carry)
    return replace(
        step,
        program=program,
        y_size=size,
        changing=tuple(range(size)),
        unchanged=(),
        named={},
        kept_labels=(),
    ), tuple(leaves)
