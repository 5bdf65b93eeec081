"""What the fission engine finds in a step: the kind of each equation, where it runs, and what of the carry is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from rnnscan.engine.fission.analysis.components import Components
from rnnscan.engine.fission.analysis.linear import is_linear
from rnnscan.engine.fission.analysis.split import Split
from rnnscan.engine.fission.execute.forward import Plan, with_known_carries
from rnnscan.engine.fission.flat_step import FlatStep
from rnnscan.engine.fission.trace import Atom, Equation


Kind: TypeAlias = Literal["invariant", "parallel", "linear", "recurrent"]


@dataclass(frozen=True)
class EquationFound:
    """What was found of an equation.

    Attributes:
        operation: the name of its primitive.
        result: the type of what it makes, such as `float32[32,1024]`.
        name: the label of what it makes, if it has one.
        reads: what it reads, in order: numbers of equations, from 0 on, or "carry[0]", "x[0]" and "constant".
        kind: invariant, parallel, linear or recurrent.
        forward: where it runs in the forward pass: once, at once for all steps of a chunk, or in which loop.
        again: how the backward pass has its result, if it needs it: kept, computed again at once for all steps of a
            chunk, or again in the loop.
    """

    operation: str
    result: str
    name: str
    reads: tuple[int | str, ...]
    kind: Kind
    forward: str
    again: str


@dataclass(frozen=True)
class CarryFound:
    """What was found of a leaf of the carry.

    Attributes:
        type: its type, such as `float32[32,256]`.
        loop: the number of the loop that it goes round; leaves that feed each other share one.
        kind: "unchanged", or the kind of that loop.
        source: what makes the new one, as in `EquationFound.reads`.
        kept: what of it stays in memory for the backward pass.
    """

    type: str
    loop: int
    kind: str
    source: int | str
    kept: str


@dataclass(frozen=True)
class Found:
    """What was found of a step.

    Attributes:
        equations: of each equation, in order.
        carry: of each leaf of the carry.
        y: what makes each leaf of y, as in `EquationFound.reads`.
    """

    equations: tuple[EquationFound, ...]
    carry: tuple[CarryFound, ...]
    y: tuple[int | str, ...]


def find(flat: FlatStep, kept: frozenset[str], *, length: int, chunk: int | None) -> Found:
    """What the engine finds in a step.

    Args:
        flat: the step, with all of its names.
        kept: the labels that are kept.
        length: steps of the sequence.
        chunk: the chosen chunk, or None.

    Returns:
        What was found.
    """
    labelled = list(zip(flat.kept, flat.kept_labels, strict=True))
    plan = Plan(_keeping(flat, kept), length, reverse=False, unroll=1, chosen_chunk=chunk)
    parts = plan.split([*plan.flat.y, *plan.flat.kept])
    kinds = _kinds(flat, parts)
    again = set(with_known_carries(plan.flat).batched)

    def treatment(equation: Equation) -> str:
        if {*equation.outputs} & {*plan.flat.kept}:
            return "kept"
        if equation in parts.invariant:
            return "once"
        return "at once" if equation in again else "in the loop"

    sources = _sources(flat)
    equations = [
        EquationFound(
            operation=equation.primitive.name,
            result=_type(equation.outputs[0]),
            name=", ".join(label for atom, label in labelled if atom in equation.outputs),
            reads=tuple(sources(atom) for atom in equation.inputs),
            kind=kinds[equation],
            forward=_place(equation, parts),
            again=treatment(equation),
        )
        for equation in flat.program.equations
    ]
    carry = [_carry(plan, index, sources(flat.new_carry[index])) for index in range(flat.carry_size)]
    return Found(tuple(equations), tuple(carry), tuple(map(sources, flat.y)))


def _sources(flat: FlatStep) -> Callable[[Atom], int | str]:
    """Where a value comes from: the number of an equation, or what the step is given."""
    known: dict[Atom, int | str] = {leaf: f"carry[{index}]" for index, leaf in enumerate(flat.carry)}
    known |= {leaf: f"x[{index}]" for index, leaf in enumerate(flat.x)}
    known |= {atom: number for number, made in enumerate(flat.program.equations) for atom in made.outputs}
    return lambda atom: known.get(atom, "constant")


def _keeping(flat: FlatStep, kept: frozenset[str]) -> FlatStep:
    """The step with only these names to keep."""
    outputs = flat.program.outputs
    stay = [atom for atom, label in zip(flat.kept, flat.kept_labels, strict=True) if label in kept]
    others = outputs[: len(outputs) - len(flat.kept)]
    return replace(flat, program=replace(flat.program, outputs=(*others, *stay)))


def _kinds(flat: FlatStep, parts: Split) -> dict[Equation, Kind]:
    kinds: dict[Equation, Kind] = dict.fromkeys(flat.program.equations, "parallel")
    kinds.update(dict.fromkeys(parts.invariant, "invariant"))
    components = Components(flat.program.equations, flat.carry, flat.new_carry)
    for members in components.members:
        loop = [equation for equation in flat.program.equations if components.has(members, equation)]
        kinds.update(dict.fromkeys(loop, _kind_of_loop(flat, members, loop)))
    return kinds


def _kind_of_loop(flat: FlatStep, members: Sequence[int], loop: Sequence[Equation]) -> Kind:
    linear = len(members) == 1 and is_linear(loop, flat.carry[members[0]], flat.new_carry[members[0]])
    return "linear" if linear else "recurrent"


def _carry(plan: Plan, index: int, source: int | str) -> CarryFound:
    flat = plan.flat
    components = Components(flat.program.equations, flat.carry, flat.new_carry)
    loop_number, members = next(found for found in enumerate(components.members, 1) if index in found[1])
    loop = [equation for equation in flat.program.equations if components.has(members, equation)]
    kind: str = "unchanged" if index in flat.unchanged else _kind_of_loop(flat, members, loop)
    if kind == "unchanged":
        kept = "once"
    elif index in flat.repeats:
        kept = "as the output that it is"
    elif index in plan.following:
        kept = f"before every chunk of {plan.chunk} steps; it follows linearly in between"
    else:
        kept = "before every step"
    return CarryFound(_type(flat.carry[index]), loop_number, kind, source, kept)


def _place(equation: Equation, parts: Split) -> str:
    if equation in parts.invariant:
        return "once"
    loops = [str(number) for number, stage in enumerate(parts.stages, 1) if equation in stage.body]
    if loops:
        return f"in loop {', '.join(loops)}"
    return "at once" if equation in parts.at_once else "not needed"


def _type(atom: Atom) -> str:
    return f"{atom.dtype}[{','.join(map(str, atom.shape))}]"
