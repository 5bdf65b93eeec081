"""The forward pass: chunk by chunk, with batched work and loops with the smallest bodies."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core

from rnnscan.engine.analysis.leaves import replace_at, split_list
from rnnscan.engine.analysis.split import Loop, Split
from rnnscan.engine.loops.in_place import InPlace
from rnnscan.engine.loops.stopping import scan_while
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive.scan import Scan
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.ir.program import evaluate, read, total_bytes, values_of


# The final carry, the stacked outputs, and carry leaves before each whole chunk.
Results: TypeAlias = tuple[list[Any], list[Any], list[Any]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Saved:
    """The arrays that stay in memory between the passes.

    Attributes:
        constants: the arrays that the step closes over.
        initial: the carry before the first step.
        carries: carry leaf -> the carry before each step, `(T, ...)`.
        final: carry leaf -> the carry after the last step, of those whose new values the backward pass reads.
        repeated: y leaf -> its stack, of those that are carry leaves too.
        starts: carry leaf -> the carry before each whole chunk, of those that follow from the others in between.
        xs: the inputs.
        kept: the named values that are kept, stacked.
        count: the number of steps that ran, of a scan with a condition. Stacks that it made have zeros after them.
    """

    constants: list[Any]
    initial: list[Any]
    carries: dict[int, Any]
    final: dict[int, Any]
    repeated: dict[int, Any]
    starts: dict[int, Any]
    xs: list[Any]
    kept: list[Any]
    count: Any = None

    @staticmethod
    def of(plan: ScanPlan, scan: Scan, arguments: Sequence[list[Any]], parts: Sequence[list[Any]]) -> "Saved":
        """The arrays among the arguments of a scan and the parts of the results of a `SavingScan`.

        Args:
            plan: the plan of the scan whose derivative reads them.
            scan: its parameters.
            arguments: its constants, carry and xs.
            parts: these parts.
        """
        (constants, initial, xs), (final, ys, stacks, starts), residuals = arguments, parts, plan.residuals
        kept, carries = split_list(stacks, [len(plan.step.kept)])
        return Saved(
            constants=list(constants),
            initial=list(initial),
            carries=dict(zip(residuals.every_step, carries, strict=True)),
            final={index: final[index] for index in residuals.final},
            repeated={index: ys[index] for index in residuals.repeated_ys},
            starts=dict(zip(residuals.chunk_starts, starts, strict=True)),
            xs=list(xs),
            kept=kept,
            count=final[0] - initial[0] if scan.is_counted else None,
        )

    @staticmethod
    def axes(residuals: ResidualPlan, scan: Scan, xs: int) -> "Saved":
        """In place of each saved array of a scan with so many inputs, the number of its axes of steps."""
        return Saved(
            constants=[0] * scan.constants,
            initial=[0] * len(residuals.carry),
            carries=dict.fromkeys(residuals.every_step, 1),
            final=dict.fromkeys(residuals.final, 0),
            repeated=dict.fromkeys(residuals.repeated_ys, 1),
            starts=dict.fromkeys(residuals.chunk_starts, 1),
            xs=[1] * xs,
            kept=[1] * len(residuals.kept),
            count=0 if scan.is_counted else None,
        )

    def stored(self, residuals: ResidualPlan) -> "Saved":
        """What is stored: None for the leaves of the initial carry that stacks of carries begin with."""
        initial = [None if index in residuals.begins else leaf for index, leaf in enumerate(self.initial)]
        return replace(self, initial=initial)

    def restored(self, scan: Scan) -> "Saved":
        """The whole, from what is stored."""
        stacks, first = self.carries | self.starts, -1 if scan.reverse else 0
        initial = [stacks[index][first] if leaf is None else leaf for index, leaf in enumerate(self.initial)]
        return replace(self, initial=initial)


def run_forward(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The final carry and ys."""
    final, ys, _ = _run(plan, constants, carry, xs, [])
    return final, ys


def run_while(
    plan: ScanPlan, condition: core.ClosedJaxpr, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> list[Any]:
    """The final carry, and the stacked outputs, of a scan that stops by a condition: step by step.

    Args:
        plan: the plan, with the most steps for a length.
        condition: the jaxpr of `(*constants, *carry) -> whether another step runs`.
        constants: the arrays that the step closes over.
        carry: the initial carry.
        xs: the inputs.
    """
    program = plan.step.program
    equations, values = program.equations, dict(zip(program.invariant, constants, strict=True))
    if not any(equation.effects for equation in equations):  # A split leaves out what no result needs.
        split = plan.forward(save=False)
        program, equations, values = split.program, tuple(split.varying), invariant_values([split], constants)
    holds = core.jaxpr_as_fun(condition)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        known = {**values, **dict(zip([*program.carry, *program.known], [*carry, *x], strict=True))}
        evaluate(equations, known)
        new_carry, ys = ([read(atom, known) for atom in atoms] for atoms in (program.new_carry, program.stacked))
        return new_carry, ys

    types = [atom.aval for atom in program.stacked]
    final, ys = scan_while(step, lambda carry: holds(*constants, *carry)[0], carry, xs, types, plan.scan.length)
    return [*final, *ys]


def run_and_count(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """The final carry, ys, and the work of Newton's method.

    For each loop that it solves there are two stacks: the iterations of a chunk, and whether the chunk ran step by
    step. They stand at the first step of a chunk, with zeros at the others.
    """
    final, stacks, _ = _run(plan, constants, carry, xs, [], counting=True)
    return final, stacks[: plan.step.y_size], stacks[plan.step.y_size :]


def run_saving(
    plan: ScanPlan,
    starting: Sequence[int],
    operands: Sequence[list[Any]],
    *,
    offloaded: Collection[int] = (),
    in_place: bool = False,
) -> list[Any]:
    """The final carry, the stacked outputs, and carry leaves before each whole chunk.

    Args:
        plan: the plan of a `SavingScan`.
        starting: these carry leaves.
        operands: constants, carry and xs.
        offloaded: the stacked outputs that go to host memory, chunk by chunk.
        in_place: whether one loop may run all steps in place. JAX's derivative of such a loop is slow.
    """
    constants, carry, xs = operands
    results = _run(plan, constants, carry, xs, starting, offloaded=offloaded, in_place=in_place)
    return [leaf for leaves in results for leaf in leaves]


def _run(
    plan: ScanPlan,
    constants: Any,
    carry: Any,
    xs: Any,
    starting: Sequence[int],
    *,
    counting: bool = False,
    offloaded: Collection[int] = (),
    in_place: bool = False,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Run all chunks.

    Args:
        plan: how the scan runs.
        constants: the arrays that the step closes over.
        carry: the initial carry.
        xs: the inputs.
        starting: the carry leaves to return at the beginning of each whole chunk.
        counting: return the work of Newton's method too, after the stacked outputs.
        offloaded: the stacked outputs that go to host memory, chunk by chunk.
        in_place: whether one loop may run all steps in place.

    Returns:
        The final carry, the stacked outputs, and the leaves `starting`.
    """
    parts = plan.summing(starting)
    place = {leaf: index for index, leaf in enumerate(parts.program.carry)}
    carried = [index for index, leaf in enumerate(plan.step.carry) if leaf in place]
    summed = [index for index, leaf in enumerate(plan.step.carry) if leaf not in place]
    starting = [place[plan.step.carry[index]] for index in starting]
    is_only_a_loop = not offloaded and not parts.outside_loops and len(parts.loops) == 1 and not _solves(parts.loops[0])
    in_one_loop = _in_one_loop(parts, starting, _chunks(plan)) if is_only_a_loop and in_place else None
    invariant = invariant_values([parts], constants)
    runner = Runner(parts, invariant, reverse=plan.scan.reverse, unroll=plan.scan.options.unroll, in_place=in_one_loop)

    def run_chunk(state: Any, xs: list[Any], steps: int) -> tuple[Any, list[Any], list[Any]]:
        carry, sums = state
        new_carry, new_sums, chunk = runner(steps, dict(zip(plan.step.x, xs, strict=True)), carry, sums)
        outputs = [chunk.stacked(atom) for atom in parts.program.stacked]
        if counting:
            begins = jnp.arange(steps) == 0
            outputs += [jnp.where(begins, count, 0) for counts in chunk.counts for count in counts]
        return (new_carry, new_sums), to_host(outputs, offloaded), chunk.starts or [carry[i] for i in starting]

    starts_of_sums = [carry[index] for index in summed]
    state = ([carry[index] for index in carried], runner.spread(starts_of_sums))
    if plan.scan.length and is_only_a_loop and (in_one_loop is not None or not starting):
        results = run_chunk(state, list(xs), plan.scan.length)
    else:
        results = _chunks(plan).run(run_chunk, state, list(xs))
    (final, sums), ys, starts = results
    totals = runner.totals(sums, starts_of_sums)
    return replace_at(replace_at(list(carry), carried, final), summed, totals), ys, starts


def _solves(loop: Loop) -> bool:
    return loop.recurrence is not None and not loop.recurrence.is_associative


def _chunks(plan: ScanPlan) -> TimeLoop:
    return TimeLoop(plan.scan.length, plan.chunk, plan.scan.reverse)


def _in_one_loop(parts: Split, starting: Sequence[int], chunks: TimeLoop) -> InPlace | None:
    """How the only loop runs over all steps in place; None if it had better not.

    It writes the carry leaves before each chunk at each step. That may cost no more than half of the bytes that it
    stacks in any case: not a matrix state, nor a cache.
    """
    (loop,), program = parts.loops, parts.program
    if parts.heuristics.batch != "costly" or loop.in_parallel or not chunks.length or not {*starting} <= {*loop.carry}:
        return None
    if 2 * total_bytes(program.carry[index] for index in starting) > total_bytes(values_of(program.stacked)):
        return None
    return InPlace(chunks, [loop.carry.index(index) for index in starting])


def to_host(leaves: Sequence[Any], which: Collection[int]) -> list[Any]:
    """The leaves, those at some positions in host memory."""
    return [_placed(leaf, jax.memory.Space.Host) if index in which else leaf for index, leaf in enumerate(leaves)]


def to_device(leaves: Sequence[Any], which: Collection[int]) -> list[Any]:
    """The leaves, those at some positions in the device's memory."""
    return [_placed(leaf, jax.memory.Space.Device) if index in which else leaf for index, leaf in enumerate(leaves)]


def _placed(leaf: Any, space: Any) -> Any:
    return jax.device_put(leaf, space)
