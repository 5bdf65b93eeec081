"""The split of one step's program into the work that must run step by step and the work that need not.

The dependence graph of a step has an edge from each carry output back to its input. Its strongly connected components
are the loops; no other equation has to wait for the step before. What does not pay to batch runs in a loop all the
same, fused with what reads it. So the equations fall into

    invariant   once, before everything
    stages      one after the other for a chunk of steps, each of which is
                    at once       work for all steps of the chunk, which waits for no loop but those of earlier stages
                    body          step by step: the loops that are ready then, with the light work around them
    at once     what is left when all loops have run

Loops that do not feed each other share a stage, and loops with nothing heavy between them share one too: a value has a
*phase*, the number of times that the work before it changes between "at once" (even) and "step by step" (odd).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rnnscan.engine.fission.analysis.components import Components
from rnnscan.engine.fission.heuristics import Pays
from rnnscan.engine.fission.trace import Atom, Equation, Program, Value, values_of


@dataclass(frozen=True)
class Roles:
    """What the inputs and outputs of a step's program are to the loop.

    Attributes:
        invariant: inputs that are the same at every step.
        known: inputs that are known for every step.
        carry: inputs that are the loop's carry.
        new_carry: outputs that are the carry of the next step to run, in the order of `carry`.
        summed: outputs of which only the sum over the steps is wanted.
        stacked: outputs that are wanted for every step.
    """

    invariant: Sequence[Value]
    known: Sequence[Value]
    carry: Sequence[Value]
    new_carry: Sequence[Atom]
    summed: Sequence[Atom] = ()
    stacked: Sequence[Atom] = ()


@dataclass(frozen=True)
class Stage:
    """One loop over the steps of a chunk.

    Attributes:
        carry: positions in `Roles.carry` of what the loop carries.
        body: its equations.
        to_body: values that enter the loop step by step.
        from_body: values of the loop that later work reads, stacked over the chunk.
        accumulated: positions in `Roles.summed` that are summed up in the loop.
        loop: those of the body's equations that lie on a cycle, where all of them are of one.
    """

    carry: tuple[int, ...]
    body: tuple[Equation, ...]
    to_body: tuple[Value, ...]
    from_body: tuple[Value, ...]
    accumulated: tuple[int, ...]
    loop: tuple[Equation, ...] | None


@dataclass(frozen=True)
class Split:
    """A step's program, split. See the module's docstring.

    Attributes:
        roles: what its inputs and outputs are.
        invariant: equations that run once.
        varying: all others, in order.
        stages: the loops, in the order in which they run.
        at_once: equations that run for all steps of a chunk at once, when their results are asked for.
        batched: those that pay to run for all steps at once, with what feeds them.
    """

    roles: Roles
    invariant: tuple[Equation, ...]
    varying: tuple[Equation, ...]
    stages: tuple[Stage, ...]
    at_once: tuple[Equation, ...]
    batched: tuple[Equation, ...]

    @property
    def accumulated(self) -> set[int]:
        """Positions in `Roles.summed` that are summed up in a loop."""
        return {position for stage in self.stages for position in stage.accumulated}


def split(
    program: Program,
    roles: Roles,
    *,
    pays: Pays,
    stays_whole: Callable[[Equation], bool],
    accumulated: Sequence[int] = (),
    emitted: Sequence[Atom] = (),
) -> Split:
    """Split a step's program.

    Args:
        program: one step.
        roles: what its inputs and outputs are.
        pays: what to batch.
        stays_whole: whether an equation must run step by step, because batching it changes what it costs.
        accumulated: positions in `roles.summed` to sum up in a loop; the others are summed after it.
        emitted: values to make in a loop and stack, rather than at once.

    Returns:
        The split.
    """
    wanted = [*roles.new_carry, *roles.summed, *roles.stacked, *emitted]
    invariant, varying = _invariant_part(needed(program.equations, wanted), roles.invariant)
    groups = _groups(varying, roles, stays_whole)
    looped = {equation for group in groups for equation in group.equations}
    free = [equation for equation in varying if equation not in looped]
    fixed = {*roles.invariant, *_outputs(invariant)}
    feeding = {equation: partial(_feeding, free[:index], equation) for index, equation in enumerate(free)}
    paying = [equation for equation in free if pays(equation, feeding[equation], fixed)]
    phase_of = _phases(varying, roles, groups, paying)
    plan = _Plan(
        available={*fixed, *roles.known},
        known=set(roles.known),
        maker={output: equation for equation in varying for output in equation.outputs},
        batched={*paying, *(feeder for equation in paying for feeder in feeding[equation]())},
        phase_of=phase_of,
    )
    loop_phase = {atom: _odd(phase_of(atom)) for atom in [*(roles.summed[i] for i in accumulated), *emitted]}
    for phase in sorted({*(group.phase for group in groups), *loop_phase.values()}):
        ready = [group for group in groups if group.phase == phase]
        carry = sorted(position for group in ready for position in group.carry)
        sums = [position for position in accumulated if loop_phase[roles.summed[position]] == phase]
        plan.add_stage(
            phase,
            carry={position: roles.carry[position] for position in carry},
            sums=sums,
            cores=[group.equations for group in ready],
            wanted=[
                *(roles.new_carry[position] for position in carry),
                *(roles.summed[position] for position in sums),
                *(atom for atom in roles.stacked if phase_of(atom) == phase),
                *(atom for atom in emitted if loop_phase[atom] == phase),
            ],
        )
    plan.ask([*(atom for i, atom in enumerate(roles.summed) if i not in accumulated), *roles.stacked])
    at_once = tuple(equation for equation in varying if equation in plan.at_once)
    batched = tuple(equation for equation in varying if equation in plan.batched)
    return Split(roles, tuple(invariant), tuple(varying), plan.stages(varying), at_once, batched)


def _feeding(earlier: Sequence[Equation], equation: Equation) -> list[Equation]:
    return needed(earlier, equation.inputs)


def needed(equations: Sequence[Equation], wanted: Iterable[Atom]) -> list[Equation]:
    """The equations that the wanted values follow from, in order."""
    open_values = set(values_of(wanted))
    kept = []
    for equation in reversed(equations):
        if any(output in open_values for output in equation.outputs):
            kept.append(equation)
            open_values.update(values_of(equation.inputs))
    return kept[::-1]


@dataclass
class _Group:
    """Equations that run in the same loop: a strongly connected component, or one equation that stays whole."""

    carry: tuple[int, ...]
    equations: list[Equation]
    phase: int = 1


@dataclass
class _StagePlan:
    carry: dict[int, Value]
    sums: list[int]
    body: set[Equation]
    loop: tuple[Equation, ...] | None
    to_body: dict[Value, None] = field(default_factory=dict)
    from_body: dict[Value, None] = field(default_factory=dict)


@dataclass
class _Plan:
    """The stages so far: what each makes, and what of it later work asks for."""

    available: set[Value]
    known: set[Value]
    maker: dict[Value, Equation]
    batched: set[Equation]
    phase_of: Callable[[Atom], int]
    at_once: set[Equation] = field(default_factory=set)
    planned: list[_StagePlan] = field(default_factory=list)
    made_by: dict[Value, _StagePlan] = field(default_factory=dict)

    def add_stage(
        self,
        phase: int,
        carry: dict[int, Value],
        sums: list[int],
        cores: Sequence[list[Equation]],
        wanted: Sequence[Atom],
    ) -> None:
        core = [equation for equations in cores for equation in equations]
        stage = _StagePlan(carry, sums, set(core), tuple(core) if len(cores) == 1 else None)
        inside = {*carry.values(), *_outputs(core)}
        to_see = [*values_of(wanted), *(value for equation in core for value in values_of(equation.inputs))]
        while to_see:
            value = to_see.pop()
            if value in inside or (value in self.available and value not in self.known):
                continue
            equation = self.maker.get(value)
            at_hand = equation is None or value in self.made_by
            if at_hand or (equation in self.batched and self.phase_of(value) < phase):
                stage.to_body[value] = None
            elif equation is not None:
                stage.body.add(equation)
                inside.update(equation.outputs)
                to_see.extend(values_of(equation.inputs))
        self.ask(stage.to_body)
        for value in [*carry.values(), *_outputs(stage.body)]:
            self.made_by.setdefault(value, stage)
        self.planned.append(stage)

    def ask(self, wanted: Iterable[Atom]) -> None:
        """Have values stacked over the chunk: those that a loop makes by the loop, others at once."""
        to_see = values_of(wanted)
        while to_see:
            value = to_see.pop()
            if value in self.made_by:
                self.made_by[value].from_body[value] = None
            elif value not in self.available and self.maker[value] not in self.at_once:
                self.at_once.add(self.maker[value])
                to_see.extend(values_of(self.maker[value].inputs))

    def stages(self, order: Sequence[Equation]) -> tuple[Stage, ...]:
        return tuple(
            Stage(
                carry=tuple(stage.carry),
                body=tuple(equation for equation in order if equation in stage.body),
                to_body=tuple(stage.to_body),
                from_body=tuple(stage.from_body),
                accumulated=tuple(stage.sums),
                loop=stage.loop,
            )
            for stage in self.planned
        )


def _groups(equations: Sequence[Equation], roles: Roles, stays_whole: Callable[[Equation], bool]) -> list[_Group]:
    components = Components(equations, roles.carry, roles.new_carry)
    groups = [
        _Group(members, [equation for equation in equations if components.has(members, equation)])
        for members in components.members
    ]
    looped = {equation for group in groups for equation in group.equations}
    return groups + [_Group((), [e]) for e in equations if stays_whole(e) and e not in looped]


def _phases(
    equations: Sequence[Equation], roles: Roles, groups: Sequence[_Group], paying: Iterable[Equation]
) -> Callable[[Atom], int]:
    """The phase of each value, and of each group: the least that has every value made before it is read."""
    at_once = set(paying)
    group_of = {equation: group for group in groups for equation in group.equations}
    phases: dict[Atom, int] = {}

    def after(atoms: Iterable[Atom]) -> int:
        return max((phases.get(atom, 0) for atom in atoms), default=0)

    settled = False
    while not settled:  # A group waits for what stands anywhere in the program, so once through is not always enough.
        settled = True
        for group in groups:
            inside = {*_outputs(group.equations), *(roles.carry[position] for position in group.carry)}
            read = [*(roles.new_carry[i] for i in group.carry), *_read(group.equations)]
            phase = _odd(after(atom for atom in read if atom not in inside))
            settled &= group.phase == phase
            group.phase = phase
            phases.update(dict.fromkeys(inside, phase))
        for equation in equations:
            if equation not in group_of:
                phase = after(equation.inputs)
                phase += phase % 2 if equation in at_once else 0
                settled &= all(phases.get(output, 0) == phase for output in equation.outputs)
                phases.update(dict.fromkeys(equation.outputs, phase))
    return lambda atom: phases.get(atom, 0)


def _odd(phase: int) -> int:
    return phase | 1


def _invariant_part(
    equations: Sequence[Equation], invariant_inputs: Iterable[Value]
) -> tuple[list[Equation], list[Equation]]:
    fixed, invariant, varying = set(invariant_inputs), [], []
    for equation in equations:
        if set(values_of(equation.inputs)) <= fixed:
            fixed.update(equation.outputs)
            invariant.append(equation)
        else:
            varying.append(equation)
    return invariant, varying


def _read(equations: Iterable[Equation]) -> list[Value]:
    return [value for equation in equations for value in values_of(equation.inputs)]


def _outputs(equations: Iterable[Equation]) -> list[Value]:
    return [output for equation in equations for output in equation.outputs]
