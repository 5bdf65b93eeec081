"""Describe a plan's step: the kind of each equation, where it runs, and which carry leaves are kept."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rnnscan.engine.analysis.recurrence import kinds_of_loops
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.plan.schedule import Schedule
from rnnscan.insight.describe_backward import backward_place
from rnnscan.insight.describe_states import describe_states
from rnnscan.ir.program import Atom, Equation


Kind: TypeAlias = Literal["invariant", "parallel", "linear", "elementwise", "recurrent"]


@dataclass(frozen=True)
class EquationInfo:
    """An equation of a step.

    Attributes:
        operation: the name of its primitive.
        result: the type of its result, such as `float32[32,1024]`.
        name: the name of its result, if it has one.
        reads: the sources of its operands, in order: numbers of equations, from 0 on, "carry[0]", "x[0]" or "constant".
        kind: invariant, parallel, linear, elementwise or recurrent.
        forward: where it runs in the forward pass: once, at once for all steps of a chunk, in a loop, or in a loop that
            Newton's method solves.
        backward: how the backward pass gets its result: kept, or recomputed once, at once for a chunk, in a loop that
            recomputes carries or in one that carries cotangents, by its number in running order; "not needed" if
            nothing of the derivative reads it.
    """

    operation: str
    result: str
    name: str
    reads: tuple[int | str, ...]
    kind: Kind
    forward: str
    backward: str


@dataclass(frozen=True)
class CarryInfo:
    """A leaf of the carry.

    Attributes:
        type: its type, such as `float32[32,256]`.
        loop: the number of the loop that carries it; leaves that feed each other share one. None: it does not change.
        kind: "unchanged", or the kind of that loop.
        source: the source of the new leaf, as in `EquationInfo.reads`.
        kept: at which steps it is kept for the backward pass.
        axes: its axes in the order in which the loop carries it; empty if they are as they are in its type.
    """

    type: str
    loop: int | None
    kind: str
    source: int | str
    kept: str
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepDescription:
    """A step, as a plan runs it.

    Attributes:
        equations: its equations, in order.
        carry: the leaves of its carry.
        y: the source of each leaf of y, as in `EquationInfo.reads`.
        states: by position of a carry leaf, whether it runs as a matrix state in chunkwise form, or why not.
        loops: for each loop of the forward pass, in order, the numbers of the carry's loops that run in it as one.
    """

    equations: tuple[EquationInfo, ...]
    carry: tuple[CarryInfo, ...]
    y: tuple[int | str, ...]
    states: dict[int, str]
    loops: tuple[tuple[int, ...], ...]


def describe(plan: ExecutionPlan, backward: Schedule | None) -> StepDescription:
    """Describe the step of a plan. For the lax engine, say how the fission engine would run the step.

    Args:
        plan: the plan.
        backward: how its backward pass runs, if that is known.
    """
    scan = plan.scan(plan.call.length)
    step, split = scan.step, scan.written
    loops = _loops(scan)
    kinds: dict[Equation, Kind] = dict.fromkeys(step.program.equations, "parallel")
    kinds.update(dict.fromkeys(split.invariant, "invariant"))
    kinds.update((equation, loop.kind) for loop in loops for equation in loop.equations)
    labels = {atom: plan.call.names.labels[position] for position, atom in sorted(step.named.items(), reverse=True)}
    again = backward_place(scan, backward)
    sources = _sources(scan)
    equations = [
        EquationInfo(
            operation=equation.name,
            result=_type(equation.outputs[0]) if equation.outputs else "",  # A print has none.
            name=", ".join(labels[output] for output in equation.outputs if output in labels),
            reads=tuple(sources(atom) for atom in equation.inputs),
            kind=kinds[equation],
            forward=_forward_place(equation, scan),
            backward=again(equation),
        )
        for equation in step.program.equations
    ]
    carry = _carry(plan, scan, loops, sources)
    window = plan.states.window(plan.call.length)
    if window is not None and plan.states.keeps_carry(window):
        kept = f"before every window of {window} steps"
        carry = tuple(leaf if leaf.loop is None else replace(leaf, kept=kept) for leaf in carry)
    run_as_one = tuple(
        tuple(number for number, loop in enumerate(loops, 1) if {*loop.members} & {*running.carry})
        for running in split.loops
    )
    return StepDescription(tuple(equations), carry, tuple(map(sources, step.y)), describe_states(plan), run_as_one)


@dataclass(frozen=True)
class _Loop:
    members: tuple[int, ...]
    equations: tuple[Equation, ...]
    kind: Kind


def _loops(scan: ScanPlan) -> list[_Loop]:
    step = scan.step
    loops = kinds_of_loops(step.program.equations, step.carry, step.new_carry)
    return [_Loop(members, cycle.equations, kind) for members, cycle, kind in loops]


def _sources(scan: ScanPlan) -> Callable[[Atom], int | str]:
    """The function from a value to its source: the number of an equation, or an argument of the step."""
    step, carry = scan.step, _whole_carry(scan)
    known: dict[Atom, int | str] = {leaf: f"carry[{index}]" for index, leaf in carry.items()}
    known |= {leaf: f"x[{index}]" for index, leaf in enumerate(step.x)}
    known |= {atom: number for number, equation in enumerate(step.program.equations) for atom in equation.outputs}
    return lambda atom: known.get(atom, "constant")


def _whole_carry(scan: ScanPlan) -> dict[int, Atom]:
    """All leaves of the carry, by position."""
    step = scan.step
    unchanged = step.constants[len(step.constants) - len(step.unchanged) :]
    return dict(zip([*step.changing, *step.unchanged], [*step.carry, *unchanged], strict=True))


def _carry(
    plan: ExecutionPlan, scan: ScanPlan, loops: list[_Loop], sources: Callable[[Atom], int | str]
) -> tuple[CarryInfo, ...]:
    step, types, leaves = scan.step, [*map(_type, plan.step.carry)], {}
    for number, loop in enumerate(loops, 1):
        for index in loop.members:
            kept = scan.residuals.carry[index].in_words(scan.chunk)
            source = sources(step.new_carry[index])
            axes = plan.ordered.axes.get(index, ())
            leaves[step.changing[index]] = CarryInfo(types[index], number, loop.kind, source, kept, axes)
    for place in step.unchanged:
        leaf = _whole_carry(scan)[place]
        leaves[place] = CarryInfo(_type(leaf), None, "unchanged", sources(leaf), "once")
    return tuple(leaves[place] for place in sorted(leaves))


def _forward_place(equation: Equation, scan: ScanPlan) -> str:
    split = scan.written
    if equation in split.invariant:
        return "once"
    loops = {str(number): loop for number, loop in enumerate(split.loops, 1) if equation in loop.body}
    if loops:
        solved = any(loop.recurrence is not None and loop.recurrence.newton_solves for loop in loops.values())
        in_parallel = any(loop.in_parallel for loop in loops.values())
        way = ", by Newton" if solved else ", as an associative scan" if in_parallel else ""
        return f"in loop {', '.join(loops)}{way}"
    return "at once" if equation in split.outside_loops else "not needed"


def _type(atom: Atom) -> str:
    return f"{atom.dtype}[{','.join(map(str, atom.shape))}]"
