"""Split a step's program into work that must run step by step, and work that can be batched.

The dependence graph of a step has an edge from each carry output back to its input. Its strongly connected components
are the loops. Other equations depend on earlier steps only through completed loops. Light work that does not pay to
batch runs in a loop too, fused with its readers. So the equations fall into

    invariant   runs once, first
    loops       run one after the other over a chunk of steps. Each has
                    batched work   for all steps of the chunk; depends on completed loops only
                    a body         step by step: the loops that are ready, with the light work around them
    outside     the batched work outside of all loops

Loops that do not feed each other share a body, and so do loops with only light work between them. The *level* of a
value counts the changes between "batched over time" (even) and "step by step" (odd) in the work before it.

Source: this is loop distribution (loop fission), Kennedy and McKinley 1990, "Loop Distribution with Arbitrary Control
Flow".
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

from rnnscan.engine.analysis.cycle import Cycle, cycles_of
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.matrix_groups import group_of
from rnnscan.engine.analysis.recurrence import Recurrence, recurrence_of
from rnnscan.engine.costs.costs import too_large_to_stack, unbatchable
from rnnscan.engine.costs.frontier import Frontiers
from rnnscan.engine.costs.heuristics import Heuristics, ShouldBatch
from rnnscan.ir.dataflow import needed, partition
from rnnscan.ir.program import Atom, Equation, Program, Value, inputs_of, outputs_of, total_bytes, values_of
from rnnscan.newton import Newton


@dataclass(frozen=True)
class Loop:
    """A loop over the steps of a chunk.

    Attributes:
        carry: positions in `Program.carry` of its leaves.
        body: its equations.
        to_body: values that the loop reads step by step.
        from_body: values of the loop that later work reads, stacked over the chunk.
        accumulated: positions in `Program.summed` of the sums that it accumulates.
        repeated: values that it computes again, though batched work computes them too.
        recurrence: how it runs in parallel over the steps of a chunk; None if it runs step by step.
    """

    carry: tuple[int, ...]
    body: tuple[Equation, ...]
    to_body: tuple[Value, ...]
    from_body: tuple[Value, ...]
    accumulated: tuple[int, ...]
    repeated: tuple[Value, ...]
    recurrence: Recurrence | None

    @property
    def results(self) -> Sequence[Value]:
        """The values that later work reads of its run, stacked."""
        return self.from_body if self.recurrence is None else self.recurrence.results

    @property
    def in_parallel(self) -> bool:
        """Whether its body runs for all steps in parallel: from its leaves before each step, or in another form."""
        return self.recurrence is not None

    @property
    def is_step_by_step(self) -> bool:
        """Whether a loop over the steps makes its leaves."""
        return self.recurrence is None or self.recurrence.kind == "scan"


@dataclass(frozen=True)
class Split:
    """A step's program, split. See the module's docstring.

    Attributes:
        program: the program.
        heuristics: the choices of the platform.
        invariant: equations that run once.
        varying: the other needed equations, in order.
        loops: the loops, in running order.
        outside_loops: equations that run outside of all loops, batched over the steps of a chunk.
        batched: equations that pay to batch, with their producers.
    """

    program: Program
    heuristics: Heuristics
    invariant: tuple[Equation, ...]
    varying: tuple[Equation, ...]
    loops: tuple[Loop, ...]
    outside_loops: tuple[Equation, ...]
    batched: tuple[Equation, ...]

    @property
    def is_only_a_loop(self) -> bool:
        """Whether one loop runs it, and nothing is batched."""
        return len(self.loops) == 1 and not self.outside_loops

    @cached_property
    def accumulated(self) -> set[int]:
        """Positions in `Program.summed` of the sums that a loop accumulates."""
        return {position for loop in self.loops for position in loop.accumulated}

    def step_of(self, loop: Loop) -> FlatStep:
        """A loop as a separate step, whose y are the results of the loop."""
        carry = tuple(self.program.carry[position] for position in loop.carry)
        new_carry = tuple(self.program.new_carry[position] for position in loop.carry)
        fixed = tuple(value for value in Cycle(loop.body, carry, new_carry).reads if value not in loop.to_body)
        program = Program(loop.body, fixed, loop.to_body, carry, new_carry=new_carry, stacked=(*loop.results,))
        return FlatStep(program, len(loop.results), (*range(len(carry)),), unchanged=(), named={})


def split(
    program: Program,
    heuristics: Heuristics,
    *,
    should_batch: Callable[[list[Equation]], ShouldBatch] | None = None,
    accumulated: Sequence[int] = (),
    operands: Sequence[Value] = (),
    solve: Newton | None = None,
    scans: bool = False,
) -> Split:
    """Split a step's program.

    Args:
        program: one step.
        heuristics: the choices of the platform.
        should_batch: maps the equations that must run step by step to a test for batching; None: that of the platform.
        accumulated: positions in `program.summed` of the sums to accumulate in a loop; others are summed after it.
        operands: values that the sums after the loop read.
        solve: solve the loops that can be solved in parallel over time; each loop is alone then.
        scans: whether loops are separate scans. A group of matrix states is alone in its loop then.

    Returns:
        The split.
    """
    equations = needed(program.equations, program.outputs)
    invariant, varying = partition(equations, program.fixed)
    groups = _groups(varying, program)
    looped, others = partition(varying, {value for group in groups for value in group.values})
    decide = heuristics.should_batch if should_batch is None else should_batch(looped)
    frontiers = Frontiers([*program.carry, *outputs_of(looped)], program.fixed)
    worth_batching, producers, emitted = _to_batch(others, frontiers, decide, program.fixed)
    emitted += _to_stack(operands, frontiers, heuristics)
    level_of = _levels(others, groups, worth_batching)
    schedule = _Schedule(
        program=program,
        varying=varying,
        batched={*worth_batching, *producers},
        level_of=level_of,
        heuristics=heuristics,
        solve=solve,
        scans=scans,
    )
    loop_level = {atom: _odd(level_of(atom)) for atom in [*(program.summed[i] for i in accumulated), *emitted]}
    for level in sorted({*(group.level for group in groups), *loop_level.values()}):
        ready = [group for group in groups if group.level == level]
        if solve is not None or scans:
            *first, ready = _apart(_in_order(ready), together=solve is None) or [[]]
            for groups_of_loop in first:
                schedule.add_loop(level, groups_of_loop)
        schedule.add_loop(
            level,
            ready,
            sums=[position for position in accumulated if loop_level[program.summed[position]] == level],
            emitted=[
                *(atom for atom in program.stacked if level_of(atom) == level),
                *(atom for atom in emitted if loop_level[atom] == level),
            ],
        )
    schedule.request([*(atom for i, atom in enumerate(program.summed) if i not in accumulated), *program.stacked])
    result = Split(
        program,
        heuristics,
        tuple(invariant),
        tuple(varying),
        schedule.loops(),
        outside_loops=tuple(equation for equation in varying if equation in schedule.outside_loops),
        batched=tuple(equation for equation in varying if equation in schedule.batched),
    )
    return _with_repeats(result) if heuristics.runs_in_a_kernel and result.is_only_a_loop else result


def _with_repeats(split: Split) -> Split:
    """The split whose only loop repeats fixed values along new axes itself, unless other fixed values need these.

    Made once, they are larger operands of the loop: a Kalman filter of 4 states takes 1.4 of the time forward (0.12).
    """
    repeats = [each for each in split.invariant if each.name == "broadcast_in_dim"]
    read = {*inputs_of(split.invariant), *values_of(split.program.outputs)}
    repeats = [each for each in repeats if read.isdisjoint(each.outputs)]
    (loop,), once = split.loops, tuple(each for each in split.invariant if each not in repeats)
    return replace(split, invariant=once, loops=(replace(loop, body=(*repeats, *loop.body)),))


def _to_batch(
    equations: Iterable[Equation], frontiers: Frontiers, should_batch: ShouldBatch, fixed: Collection[Value]
) -> tuple[list[Equation], list[Equation], list[Value]]:
    """Choose the equations that pay to batch, of those that need not run in a loop.

    Returns:
        These equations; their producers; the values that loops should stack for both.
    """
    worth_batching: list[Equation] = []
    producers: list[Equation] = []
    stacked: list[Value] = []
    for equation in equations:
        find = cache(partial(frontiers.find, equation.inputs))
        if should_batch(equation, find, fixed):
            work = frontiers.work(find())
            worth_batching.append(equation)
            producers += work
            stacked += frontiers.to_stack(find())
            frontiers.take(find(), [*work, equation])
        frontiers.add(equation)
    return worth_batching, producers, stacked


def _to_stack(operands: Iterable[Value], frontiers: Frontiers, heuristics: Heuristics) -> list[Value]:
    """The values that loops should stack for the operands of sums."""
    stacked: list[Value] = []
    for value in operands:
        frontier = frontiers.find([value])
        work = frontiers.work(frontier)
        if work and (value.nbytes < frontier.moved or heuristics.too_large_to_feed(value, work)):
            stacked.append(value)
            frontiers.take_value(value)
        else:
            stacked += frontiers.to_stack(frontier)
            frontiers.take(frontier, work)
    return stacked


@dataclass(eq=False)
class _Group:
    """Equations that run in the same loop: a strongly connected component, or one equation that cannot be batched."""

    carry: tuple[int, ...]
    cycle: Cycle
    level: int = 1

    @cached_property
    def values(self) -> set[Value]:
        """The leaves, and the results of the equations."""
        return {*self.cycle.leaves, *outputs_of(self.cycle.equations)}


@dataclass
class _Schedule:
    """The loops so far, and the values that later work reads from each."""

    program: Program
    varying: Sequence[Equation]
    batched: set[Equation]
    level_of: Callable[[Atom], int]
    heuristics: Heuristics
    solve: Newton | None
    scans: bool
    outside_loops: set[Equation] = field(default_factory=set)
    # Each with its cycle, if it has one alone, and the values of it that are read so far.
    open_loops: list[tuple[Loop, Cycle | None, dict[Value, None]]] = field(default_factory=list)
    # Value -> the values that are read so far of the loop that makes it.
    read_of: dict[Value, dict[Value, None]] = field(default_factory=dict)

    def add_loop(
        self, level: int, groups: Sequence[_Group], sums: Sequence[int] = (), emitted: Sequence[Atom] = ()
    ) -> None:
        """Add a loop with the cycles of groups and the light work that they read, and request its other inputs."""
        program, positions = self.program, sorted(position for group in groups for position in group.carry)
        carry, new_carry = [program.carry[i] for i in positions], [program.new_carry[i] for i in positions]
        core = [equation for group in groups for equation in group.cycle.equations]
        body, inside = {*core}, {*carry, *outputs_of(core)}
        to_body, from_body, repeated = dict[Value, None](), dict[Value, None](), dict[Value, None]()
        pending = [*values_of([*new_carry, *(program.summed[i] for i in sums), *emitted]), *inputs_of(core)]
        while pending:
            value = pending.pop()
            if value in inside or value in program.fixed:
                continue
            equation = program.maker.get(value)
            is_materialized = equation is None or value in self.read_of
            is_batched = equation in self.batched and self.level_of(value) < level
            if is_materialized or (is_batched and not self._should_repeat(value, carry)):
                to_body[value] = None
            elif equation is not None:
                body.add(equation)
                inside.update(equation.outputs)
                pending.extend(equation.reads)
                if is_batched:
                    repeated.update(dict.fromkeys(equation.outputs))
        self.request(to_body)
        for value in [*carry, *outputs_of(body)]:
            if value not in repeated:
                self.read_of.setdefault(value, from_body)
        in_order = tuple(equation for equation in self.varying if equation in body)
        loop = Loop(tuple(positions), in_order, tuple(to_body), (), tuple(sums), tuple(repeated), recurrence=None)
        self.open_loops.append((loop, groups[0].cycle if len(groups) == 1 else None, from_body))

    def _should_repeat(self, value: Value, carry: Collection[Value]) -> bool:
        """Whether a loop computes a batched value again, instead of reading it from a stack."""
        equation = self.program.maker.get(value)
        if equation is None or not self.heuristics.should_repeat(equation, carry):
            return False
        varying = [operand for operand in equation.reads if operand not in self.program.fixed]
        return all(
            not too_large_to_stack([operand], carry) or self._should_repeat(operand, carry) for operand in varying
        )

    def request(self, wanted: Iterable[Atom]) -> None:
        """Stack values over the chunk: a loop stacks its own values, and batched work computes the others."""
        pending = values_of(wanted)
        while pending:
            value = pending.pop()
            equation = self.program.maker.get(value)
            if value in self.read_of:
                self.read_of[value][value] = None
            elif equation is not None and value not in self.program.fixed and equation not in self.outside_loops:
                self.outside_loops.add(equation)
                pending.extend(equation.reads)

    def loops(self) -> tuple[Loop, ...]:
        """The loops, once all that is read of them is requested."""
        return tuple(
            replace(loop, from_body=tuple(from_body), recurrence=self._recurrence(loop, cycle, from_body))
            for loop, cycle, from_body in self.open_loops
        )

    def _recurrence(self, loop: Loop, cycle: Cycle | None, from_body: Iterable[Value]) -> Recurrence | None:
        if self.scans and not group_of(loop.body):
            leaves = tuple(self.program.carry[position] for position in loop.carry)
            new_leaves = tuple(self.program.new_carry[position] for position in loop.carry)
            # What is read of it is made again from its leaves, if these are smaller.
            is_smaller = total_bytes(leaves) < total_bytes(from_body)
            return Recurrence("scan", Cycle(loop.body, leaves, new_leaves)) if is_smaller else None
        if cycle is None or not loop.carry or loop.accumulated:
            return None
        return recurrence_of(cycle, self.solve, associative=self.heuristics.linear == "associative")


def _in_order(groups: Sequence[_Group]) -> list[_Group]:
    """The groups in an order in which none reads values of a later one."""
    waiting, ordered = list(groups), list[_Group]()
    while waiting:
        ready = [group for group in waiting if all(other.values.isdisjoint(group.cycle.reads) for other in waiting)]
        ordered += ready
        waiting = [group for group in waiting if group not in ready]
    return ordered


def _apart(groups: Sequence[_Group], *, together: bool) -> list[list[_Group]]:
    """The groups of each loop: one. With `together`, neighbors share a loop, but matrix states do not."""
    loops: list[list[_Group]] = []
    for group in groups:
        joins = together and bool(loops) and not any(group_of(g.cycle.equations) for g in (group, *loops[-1]))
        loops[-1:] = [[*loops[-1], group]] if joins else [*loops[-1:], [group]]
    return loops


def _groups(equations: Sequence[Equation], program: Program) -> list[_Group]:
    cycles = cycles_of(equations, program.carry, program.new_carry)
    groups = [_Group(members, cycle) for members, cycle in cycles]
    cyclic = {equation for group in groups for equation in group.cycle.equations}
    return groups + [_Group((), Cycle((e,), (), ())) for e in equations if unbatchable(e) and e not in cyclic]


def _levels(
    others: Sequence[Equation], groups: Sequence[_Group], worth_batching: Iterable[Equation]
) -> Callable[[Atom], int]:
    """The level of each value, and of each group: the least that makes every value before it is read.

    Args:
        others: the equations that are in no group.
        groups: the groups.
        worth_batching: the equations that pay to batch.
    """
    batched = set(worth_batching)
    levels: dict[Atom, int] = {}

    def after(atoms: Iterable[Atom]) -> int:
        return max((levels.get(atom, 0) for atom in atoms), default=0)

    settled = False
    while not settled:  # A group may read values from anywhere in the program, so one pass may not suffice.
        settled = True
        for group in groups:
            level = _odd(after(group.cycle.reads))
            settled &= group.level == level
            group.level = level
            levels.update(dict.fromkeys(group.values, level))
        for equation in others:
            level = after(equation.inputs)
            level += level % 2 if equation in batched else 0
            settled &= all(levels.get(output, 0) == level for output in equation.outputs)
            levels.update(dict.fromkeys(equation.outputs, level))
    return lambda atom: levels.get(atom, 0)


def _odd(level: int) -> int:
    return level | 1
