"""The plan of a scan that is an equation of a jaxpr, from the parameters of the equation alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from jax.extend import core

from rnnscan.engine.analysis.activity import register_activity
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.saving_calls import SCAN, register_saving
from rnnscan.engine.cache.by_jaxpr import cached_by_jaxpr
from rnnscan.engine.costs.heuristics import Heuristics, for_platform
from rnnscan.engine.one_kernel.small_step import small_loop
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive.scan import InnerScan, Saving, Scan, scan_p, y_size
from rnnscan.ir.invalid_values import are_searched
from rnnscan.ir.leaves import split_list
from rnnscan.ir.program import Atom, Equation, operation
from rnnscan.ir.structure import key_of_jaxpr, key_of_step
from rnnscan.ir.trace import program_as_jaxpr, program_of


# No step may hold its jaxpr, which would then stay for ever.
# jaxpr of a step -> (constants, carry, labels of kept values) -> the step
_steps: WeakKeyDictionary[core.Jaxpr, dict[Any, FlatStep]] = WeakKeyDictionary()
# what a step computes -> its jaxpr
_known: WeakValueDictionary[Any, core.ClosedJaxpr] = WeakValueDictionary()


def scan_plan(step: core.ClosedJaxpr, scan: Scan, platform: str | None = None) -> ScanPlan:
    """The plan of a scan.

    Args:
        step: its step.
        scan: its other parameters.
        platform: the platform that it is lowered for; None: that by which it is decided what is saved.
    """
    options = scan.options
    return _plan_by(step, scan, options.choices or for_platform(platform or options.platform))


@cached_by_jaxpr
def _plan_by(step: core.ClosedJaxpr, scan: Scan, choices: Heuristics) -> ScanPlan:
    """The plan of a scan, by some heuristics."""
    flat = flat_step(step, scan)
    return ScanPlan(flat, scan, choices, small_loop(flat.program, scan.options.residuals, choices))


def flat_step(step: core.ClosedJaxpr, scan: Scan) -> FlatStep:
    """The step of a scan as a program."""
    steps = _steps.setdefault(step.jaxpr, {})
    key = (scan.constants, scan.carry, scan.options.kept)
    if key not in steps:
        program = program_of(step)
        constants, carry, x = split_list(program.known, [scan.constants, scan.carry])
        new_carry, stacked = split_list(program.stacked, [scan.carry])
        program = replace(
            program,
            invariant=tuple(constants),
            carry=tuple(carry),
            known=tuple(x),
            new_carry=tuple(new_carry),
            stacked=tuple(stacked),
        )
        flat = FlatStep(program, y_size(step, scan), tuple(range(scan.carry)), (), {}, kept_labels=scan.options.kept)
        steps[key] = flat.keeping_parts()
    return steps[key]


def active_results(step: core.ClosedJaxpr, scan: Scan, active: Sequence[bool]) -> list[bool]:
    """Whether each result of a scan has a tangent, given which operands have. A constant has one where its copy has."""
    size = len(step.in_avals)
    flags = list(active[:size])
    for (index, _), is_active in zip(scan.copied, active[size:], strict=True):
        flags[index] |= is_active
    return flat_step(step, scan).active(flags)


def bound_step(plan: ScanPlan, *, with_effects: bool = False) -> core.ClosedJaxpr:
    """The step of the equation that has a plan.

    Args:
        plan: the plan. The other parameters of the equation are its `scan`.
        with_effects: whether the step has the effects that no result needs.
    """
    step, scan = plan.step, plan.scan
    # Equal steps are one, so that equal layers are planned and lowered once.
    key = (key_of_step(step.program), step.y_size, step.kept_labels, step.parts, with_effects)
    closed = _known.get(key)
    if closed is None or are_searched():  # Errors name the line of the step itself.
        closed = _known[key] = step.as_jaxpr(with_effects=with_effects)
        _steps.setdefault(closed.jaxpr, {})[scan.constants, scan.carry, step.kept_labels] = step
    return closed


def shared(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """A jaxpr, or an equal one that lives, so that equal scans around segments and conditions are lowered once."""
    return closed if are_searched() else _known.setdefault(key_of_jaxpr(closed), closed)


@dataclass(frozen=True)
class SavingScan:
    """A scan that returns what its derivative reads, each stack once.

    Attributes:
        step: its step.
        scan: its other parameters.
        saving: what it returns after the stacks.
        ys: of each leaf of y, whether it is "x" or is "made", and its position there.
        saved: the same for each stack that is saved: the kept values, then the carry before every step.
    """

    step: core.ClosedJaxpr
    scan: Scan
    saving: Saving
    ys: tuple[tuple[str, int], ...]
    saved: tuple[tuple[str, int], ...]

    def parts(self, xs: Sequence[Any], results: Sequence[Any]) -> list[list[Any]]:
        """The final carry, ys, the stacks that are saved, and the leaves before each chunk, from all results."""
        made = len(self.step.out_avals) - self.scan.carry
        final, stacks, starts = split_list(results, [self.scan.carry, made])
        groups = {"x": xs, "made": stacks}
        ys, saved = ([groups[group][index] for group, index in places] for places in (self.ys, self.saved))
        return [final, ys, saved, starts]


def saving_scan(step: core.ClosedJaxpr, scan: Scan, *, whole: bool = False) -> SavingScan:
    """The scan that saves what `ResidualPlan` says.

    Args:
        step: the step of the scan without what is saved.
        scan: its other parameters.
        whole: whether its first results are those of that scan, so that it can take its place.
    """
    return _saving_scan(step, scan, whole)


@cached_by_jaxpr
def _saving_scan(step: core.ClosedJaxpr, scan: Scan, whole: bool) -> SavingScan:
    plan = scan_plan(step, scan).for_derivatives
    program = plan.saving
    ys, saved = split_list(program.stacked, [plan.step.y_size])
    # The backward pass would keep both a stack and its copy. After the last step to run they differ.
    known = [] if whole or scan.is_counted else program.known
    inputs: dict[Atom, tuple[str, int]] = {atom: ("x", i) for i, atom in enumerate(known)}
    made = [atom for atom in dict.fromkeys([*ys, *saved]) if atom not in inputs]
    if whole:
        made = [*ys, *(atom for atom in made if atom not in {*ys})]
    places = inputs | {atom: ("made", i) for i, atom in reversed([*enumerate(made)])}
    program = replace(program, stacked=tuple(made))
    operands = [*program.invariant, *program.carry, *program.known]
    outputs = [*program.new_carry, *program.stacked]
    closed = program_as_jaxpr(program.equations, operands, outputs, with_effects=scan.is_counted)
    flat = FlatStep(program, len(made), tuple(range(scan.carry)), (), {})
    _steps.setdefault(closed.jaxpr, {})[scan.constants, scan.carry, ()] = flat
    options = replace(scan.options, chunk=plan.chunk, offload=(), chooses_kept_values=False, kept=(), windows=None)
    scan, saving = replace(scan, options=options, copied=()), Saving(tuple(plan.residuals.chunk_starts))
    of_ys, of_saved = (tuple(places[atom] for atom in atoms) for atoms in (ys, saved))
    return SavingScan(closed, scan, saving, of_ys, of_saved)


def _saving_equation(equation: Equation) -> Equation | None:
    """The rule by which a scan within a step keeps its residuals, and the results that its derivative reads."""
    step, scan = equation.params["step"], equation.params["scan"]
    plan = scan_plan(step, scan).for_derivatives
    # A scan that counts its steps has stacks for the most steps, and the derivative of windows is that of each.
    if scan.options.windows or plan.residuals.offloaded or scan.copied or scan.is_counted:
        return None
    saving, residuals = saving_scan(step, scan, whole=True), plan.residuals
    ys = {*residuals.repeated_ys, *(index for _, index in saving.saved)}
    reads = (*(i in residuals.final for i in range(scan.carry)), *(i in ys for i in range(plan.step.y_size)))
    params = {
        "step": saving.step,
        "scan": saving.scan,
        "saving": replace(saving.saving, inner=InnerScan(step, scan, reads)),
    }
    made = operation(scan_p, params, equation.inputs, equation.origin)
    return replace(made, outputs=(*equation.outputs, *made.outputs[len(equation.outputs) :]))


def _active_results(equation: Equation, active: Sequence[bool]) -> list[bool]:
    """Whether each result of a scan within a step has a tangent. Those that it saves come last."""
    saving = equation.params["saving"]
    results = active_results(equation.params["step"], equation.params["scan"], active)
    return [*results, *(results[leaf] for leaf in (saving.starts if saving else ()))]


register_saving(_saving_equation)
register_activity(SCAN, _active_results)
