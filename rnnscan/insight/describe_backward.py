"""Where the backward pass computes the results of a step again.

JAX's vjp of the step and passes make its program, so an equation of the step is there as another object, or not at all.
Two values are the same if the same operations make them of the same inputs: the values of both programs get numbers by
what makes them.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.engine.analysis.derivative_reads import read_by_derivatives
from rnnscan.engine.analysis.split import Split
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.plan.schedule import Schedule
from rnnscan.engine.run.backward import schedule_of
from rnnscan.engine.run.step_vjp import Cotangents, Vjp, step_vjp
from rnnscan.ir.dataflow import needed
from rnnscan.ir.leaves import split_list
from rnnscan.ir.program import Atom, Equation, Value, concrete, outputs_of


def backward_schedule(plan: ExecutionPlan) -> Schedule | None:
    """How a plan's backward pass runs, of all floating-point leaves of the parameters, carry and inputs.

    None where JAX has no derivative of the step, where plain autodiff runs it, and where the backward pass has another
    form: that of Newton's method, or the chunkwise one of matrix states.
    """
    if plan.call.parallel is not None or plan.states.window(plan.call.length) is not None:
        return None
    if plan.route.engine != "fission":
        return None
    scan, leaves = plan.scan(plan.call.length), jax.tree.leaves(plan.call.carry)
    carry = plan.ordered.of([leaves[index] for index in scan.step.changing])
    return _schedule_of_derivative(scan, plan.constants, carry, jax.tree.leaves(plan.call.xs))


def _schedule_of_derivative(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> Schedule | None:
    """How a step's backward pass runs; None if nothing is differentiated, or JAX has no derivative of it.

    Args:
        plan: how the scan runs.
        constants: what the step closes over. Here and below, all floating-point leaves are differentiated.
        carry: the initial carry.
        xs: the inputs.
    """
    step = plan.step
    wanted = [jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact) for leaf in (*constants, *carry, *xs)]
    final, ys = split_list(step.active(wanted), [len(step.carry)])
    if not any([*final, *ys]):
        return None
    cotangents = Cotangents.of(step, wanted, final, ys)
    try:
        vjp = Vjp(step_vjp(plan, cotangents), plan.scan, cotangents, plan.residuals)
        return schedule_of(vjp, vjp.heuristics(plan.choices), [*constants, *carry])
    except Exception:  # JAX's errors where a primitive has no transpose, or a rule refuses tangents: some have no type.
        return None


def backward_place(scan: ScanPlan, schedule: Schedule | None) -> Callable[[Equation], str]:
    """The function from an equation of a step to where the backward pass gets its result.

    Args:
        scan: how the scan runs.
        schedule: how its backward pass runs, if that is known.
    """
    step, again, batched = scan.step, _computed_again(scan), {*scan.recomputed.batched}
    numbers = _Numbers()
    places = _places(scan, schedule, numbers) if schedule is not None else {}
    loops = _unnumbered(scan) if schedule is None or len(schedule.main.loops) != 1 else "in backward loop 1"

    def place(equation: Equation) -> str:
        if {*equation.outputs} & {*step.kept}:
            return "kept"
        if equation in scan.written.invariant:
            return "once"
        found = places.get(numbers.of(equation.outputs[0])) if equation.outputs else None
        if found:
            return ", ".join(found)
        if schedule is not None and equation not in again and not equation.effects:
            return "not needed"
        # JAX's derivative, or a pass, computes it in another way.
        return "at once" if equation in batched else loops

    return place


def _unnumbered(scan: ScanPlan) -> str:
    """The place of what runs in a loop of the backward pass, where its number is not known."""
    return f"in the backward loop{'s' if len(scan.written.loops) > 1 else ''}"


def _computed_again(scan: ScanPlan) -> set[Equation]:
    """The equations that a backward pass needs, which reads kept values and the carry leaves that are known."""
    step, residuals = scan.step, scan.residuals
    known = {*step.kept, *(step.new_carry[index] for index in residuals.restored)}
    wanted = [atom for atom in read_by_derivatives(step.program) if atom not in known]
    wanted += [step.new_carry[index] for index in residuals.recomputed]
    unknown = [equation for equation in step.program.equations if known.isdisjoint(equation.outputs)]
    return {*needed(unknown, wanted)}


class _Numbers:
    """Numbers of values: equal for values that the same operations make of the same inputs."""

    def __init__(self) -> None:
        self._of: dict[Value, int] = {}
        self._known: dict[Hashable, int] = {}

    def of(self, atom: Atom) -> int:
        """The number of a value, or of a constant."""
        if isinstance(atom, Value):
            return self._of[atom] if atom in self._of else self._new(atom, (id(atom),))
        number = concrete(atom)
        if number is None or np.ndim(number) or jnp.issubdtype(atom.dtype, jax.dtypes.extended):
            return self._number(("array", id(atom.value)))
        return self._number(("number", str(atom.aval), repr(np.asarray(number).item())))

    def same(self, atoms: Iterable[Atom], others: Iterable[Atom]) -> None:
        """Let values have the numbers of others."""
        for atom, other in zip(atoms, others, strict=False):
            if isinstance(atom, Value):
                self._of.setdefault(atom, self.of(other))

    def add(self, equations: Iterable[Equation]) -> None:
        """Number the results of equations, in their order."""
        for equation in equations:
            made_by = (equation.operation, *map(self.of, equation.inputs))
            for index, output in enumerate(equation.outputs):
                self._new(output, (made_by, index))

    def _new(self, value: Value, made_by: Hashable) -> int:
        return self._of.setdefault(value, self._number(made_by))

    def _number(self, made_by: Hashable) -> int:
        return self._known.setdefault(made_by, len(self._known))


def _places(scan: ScanPlan, schedule: Schedule, numbers: _Numbers) -> Mapping[int, list[str]]:
    """The places of the values that a backward pass makes, by their numbers."""
    step, residuals = scan.step, scan.residuals
    numbers.add(step.program.equations)
    stored = [leaf for index, leaf in enumerate(step.carry) if index not in residuals.recomputed]
    known = [*stored, *step.x, *step.kept, *(step.new_carry[index] for index in residuals.restored)]
    made: dict[int, dict[str, None]] = {}
    for split in schedule.splits:
        in_loop = "in backward loop {}" if split is schedule.main else "in loop {} to recompute carries"
        program = split.program
        numbers.same(program.invariant, step.constants)
        numbers.same(program.known, known)
        if split is schedule.recompute:
            numbers.same(program.carry, [step.carry[index] for index in residuals.recomputed])
        numbers.add(program.equations)
        for place, equations in _parts(split, in_loop):
            for value in outputs_of(equations):
                made.setdefault(numbers.of(value), {})[place] = None
    return {number: [*places] for number, places in made.items()}


def _parts(split: Split, in_loop: str) -> Iterator[tuple[str, Iterable[Equation]]]:
    """The parts of a split that run together: where, and their equations."""
    yield "once", split.invariant
    for number, loop in enumerate(split.loops, 1):
        yield in_loop.format(number), loop.body
    yield "at once", split.outside_loops
