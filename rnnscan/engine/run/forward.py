"""The forward pass: chunk by chunk, with batched work and loops with the smallest bodies."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan.engine.analysis.split import Loop, Split
from rnnscan.engine.loops.in_place import InPlace
from rnnscan.engine.loops.offload import to_host
from rnnscan.engine.loops.own_derivative import differentiate_as
from rnnscan.engine.loops.time_loop import TimeLoop, before_each
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.ir.program import Program, total_bytes, values_of


# The final carry, the stacked outputs, and carry leaves before each whole chunk.
Results: TypeAlias = tuple[list[Any], list[Any], list[Any]]
# (constants, carry, xs), and whether it may run in place -> results
Run: TypeAlias = Callable[..., Results]


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
        count: the number of steps that ran, where it is not that of the plan. The stacks have zeros after them.
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

    @property
    def residuals(self) -> tuple[Any, ...]:
        """The arrays that stay in memory in addition to the arguments and results of the scan."""
        return self.carries, self.starts, self.kept, self.count

    @staticmethod
    def of(plan: ScanPlan, arguments: Any, results: Any, residuals: tuple[Any, ...]) -> "Saved":
        """The saved values of a scan by a plan."""
        (constants, initial, xs), (final, ys), (carries, starts, kept, count) = arguments, results, residuals
        return Saved(
            constants=list(constants),
            initial=list(initial),
            carries=carries,
            final={index: final[index] for index in plan.residuals.final},
            repeated={index: ys[index] for index in plan.residuals.repeated_ys},
            starts=starts,
            xs=list(xs),
            kept=kept,
            count=count,
        )

    @property
    def arguments(self) -> tuple[list[Any], list[Any], list[Any]]:
        """The arguments of the scan: constants, carry and xs."""
        return self.constants, self.initial, self.xs


def run_forward(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The final carry and ys."""
    final, ys, _ = _run(plan, plan.forward(save=False), constants, carry, xs, [])
    return final, ys


def run_along(
    plan: ScanPlan, saved: Saved, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The final carry and ys, where a run has saved the carry before each step, for derivatives.

    Loops that `plan.parallel` solves take their leaves from there. Their derivatives are solved for.
    """
    known = dict(saved.carries)
    for index, y in plan.residuals.repeats.items():
        known[index] = before_each(saved.repeated[y], saved.initial[index], reverse=plan.reverse)
    final, ys, _ = _run(plan, plan.forward(save=False), constants, carry, xs, [], known=known)
    return final, ys


def run_and_count(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """The final carry, ys, and the work of Newton's method.

    For each loop that it solves there are two stacks: the iterations of a chunk, and whether the chunk ran step by
    step. They stand at the first step of a chunk, with zeros at the others.
    """
    final, stacks, _ = _run(plan, plan.forward(save=False), constants, carry, xs, [], counting=True)
    return final, stacks[: plan.step.y_size], stacks[plan.step.y_size :]


def run_and_save(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], *, in_one_call: bool = False
) -> tuple[list[Any], list[Any], Saved]:
    """The final carry, ys, and the values that the backward pass needs. `in_one_call`: see `_in_one_call`."""
    step, parts = plan.step, plan.forward(save=True)
    offloaded = frozenset(step.y_size + index for index in plan.residuals.offloaded)

    def run(constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], *, in_place: bool = False) -> Results:
        starting = plan.residuals.chunk_starts
        return _run(plan, parts, constants, carry, xs, starting, offloaded=offloaded, in_place=in_place)

    # An offloaded value may be a y too, which is not offloaded.
    run_once = _in_one_call(run, parts.program) if in_one_call and not offloaded else run
    final, stacks, starts = run_once(list(constants), list(carry), list(xs))
    ys, kept = stacks[: step.y_size], stacks[step.y_size :][: len(step.kept)]
    carries = dict(zip(plan.residuals.every_step, stacks[step.y_size + len(step.kept) :], strict=True))
    residuals = (carries, dict(zip(plan.residuals.chunk_starts, starts, strict=True)), kept, None)
    return final, ys, Saved.of(plan, (constants, carry, xs), (final, ys), residuals)


def _in_one_call(run: Run, program: Program) -> Run:
    """A run as one call, which JAX evaluates as a whole where it linearizes a rule and knows all arguments.

    Else it looks for unknown values in each `lax.scan`, finds none, but traces nested bodies up to five times. In other
    traces the policies of `jax.checkpoint` should see the scans, unless rules would be lost (run/fission.py). As JAX
    does not differentiate the call, it may run in place.

    Args:
        run: runs all chunks.
        program: the step that it runs.
    """
    # A call returns copies: of a value that is stacked twice or given, the backward pass would keep both.
    new = [atom for atom in dict.fromkeys(program.stacked) if atom not in program.known]

    def run_new(*arguments: Any, in_place: bool) -> Results:
        final, all_stacks, starts = run(*arguments, in_place=in_place)
        stacks = dict(zip(program.stacked, all_stacks, strict=True))
        return final, [stacks[atom] for atom in new], starts

    call = differentiate_as(partial(run_new, in_place=False), partial(run_new, in_place=True))

    def run_all(constants: Any, carry: Any, xs: Any) -> Results:
        final, new_stacks, starts = call(constants, carry, xs)
        stacks = dict(zip([*program.known, *new], [*xs, *new_stacks], strict=True))
        return final, [stacks[atom] for atom in program.stacked], starts

    return run_all


def _run(
    plan: ScanPlan,
    parts: Split,
    constants: Any,
    carry: Any,
    xs: Any,
    starting: Sequence[int],
    *,
    counting: bool = False,
    known: Mapping[int, Any] | None = None,
    offloaded: Collection[int] = (),
    in_place: bool = False,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Run all chunks.

    Args:
        plan: how the scan runs.
        parts: the split of its step.
        constants: the arrays that the step closes over.
        carry: the initial carry.
        xs: the inputs.
        starting: the carry leaves to return at the beginning of each whole chunk.
        counting: return the work of Newton's method too, after the stacked outputs.
        known: carry leaf -> the carry before each step, for `run_along`.
        offloaded: the stacked outputs that go to host memory, chunk by chunk.
        in_place: whether one loop may run all steps in place.

    Returns:
        The final carry, the stacked outputs, and the leaves `starting`.
    """
    is_only_a_loop = not offloaded and not parts.outside_loops and len(parts.loops) == 1 and not _solves(parts.loops[0])
    in_one_loop = _in_one_loop(parts, starting, _chunks(plan)) if is_only_a_loop and in_place else None
    invariant = invariant_values([parts], constants)
    runner = Runner(parts, invariant, reverse=plan.reverse, unroll=plan.unroll, in_place=in_one_loop)
    stacks = [*xs, *(known or {}).values()]
    input_values = [*plan.step.x, *(parts.program.carry[index] for index in known or ())]

    def run_chunk(carry: list[Any], xs: list[Any], _: Any, steps: int) -> tuple[list[Any], list[Any], list[Any]]:
        new_carry, _, chunk = runner(steps, dict(zip(input_values, xs, strict=True)), carry)
        outputs = [chunk.stacked(atom) for atom in parts.program.stacked]
        if counting:
            begins = jnp.arange(steps) == 0
            outputs += [jnp.where(begins, count, 0) for counts in chunk.counts for count in counts]
        return new_carry, to_host(outputs, offloaded), chunk.starts or [carry[i] for i in starting]

    if plan.length and is_only_a_loop and (in_one_loop is not None or not starting):
        return run_chunk(list(carry), stacks, [], plan.length)
    # A gradient of the tangents along known carries keeps no more than the carry before each chunk.
    run = run_chunk if known is None else jax.checkpoint(run_chunk, prevent_cse=False, static_argnums=3)
    return _chunks(plan).run(run, list(carry), stacks, [], [])


def _solves(loop: Loop) -> bool:
    return loop.recurrence is not None and not loop.recurrence.is_associative


def _chunks(plan: ScanPlan) -> TimeLoop:
    return TimeLoop(plan.length, plan.chunk, plan.reverse)


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
