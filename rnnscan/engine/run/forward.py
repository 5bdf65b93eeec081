"""The forward pass: chunk by chunk, with batched work and loops with the smallest bodies."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from rnnscan.engine.analysis.split import Loop, Split
from rnnscan.engine.loops.batched_values import Chunk, of_stack
from rnnscan.engine.loops.steps import Starts
from rnnscan.engine.loops.stopping import scan_while
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.in_chunks import run_in_chunks
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.engine.run.saved import to_host
from rnnscan.ir.leaves import replace_at
from rnnscan.ir.program import evaluate, read, total_bytes, values_of


def run_forward(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The final carry and ys."""
    final, ys, _ = _run(plan, constants, carry, xs)
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
        split = plan.forward()
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
    final, stacks, _ = _run(plan, constants, carry, xs, counting=True)
    return final, stacks[: plan.step.y_size], stacks[plan.step.y_size :]


def run_saving(
    plan: ScanPlan, starting: Sequence[int], operands: Sequence[list[Any]], offloaded: Collection[int] | None = None
) -> list[Any]:
    """The final carry, the stacked outputs, and carry leaves before each whole chunk.

    Args:
        plan: the plan of a `SavingScan`.
        starting: these carry leaves.
        operands: constants, carry and xs.
        offloaded: the stacked outputs that go to host memory, chunk by chunk. Then JAX can differentiate the loops;
            None: all stay, and it cannot.
    """
    constants, carry, xs = operands
    results = _run(plan, constants, carry, xs, starting, offloaded)
    return [leaf for leaves in results for leaf in leaves]


def _run(
    plan: ScanPlan,
    constants: Sequence[Any],
    carry: Sequence[Any],
    xs: Sequence[Any],
    starting: Sequence[int] = (),
    offloaded: Collection[int] | None = None,
    *,
    counting: bool = False,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Run all chunks.

    Args:
        plan: how the scan runs.
        constants: the arrays that the step closes over.
        carry: the initial carry.
        xs: the inputs.
        starting: the carry leaves to return at the beginning of each whole chunk.
        offloaded: as for `run_saving`.
        counting: whether to return the work of Newton's method too, after the stacked outputs.

    Returns:
        The final carry, the stacked outputs, and the leaves `starting`.
    """

    def finish(chunk: Chunk, stacks: list[Any]) -> list[Any]:
        counts = [count for pair in chunk.counts for count in pair] if counting else []
        return [*to_host(stacks, offloaded or ()), *(jnp.where(jnp.arange(chunk.steps) == 0, n, 0) for n in counts)]

    parts, scan, is_differentiable = plan.forward(starting), plan.scan, offloaded is not None
    place = {leaf: index for index, leaf in enumerate(parts.program.carry)}
    carried = [index for index, leaf in enumerate(plan.step.carry) if leaf in place]
    summed = [index for index, leaf in enumerate(plan.step.carry) if leaf not in place]
    starts = [place[plan.step.carry[index]] for index in starting]
    chunks = TimeLoop(scan.length, plan.chunk, scan.reverse)
    is_one_loop = parts.is_only_a_loop and not _solves(parts.loops[0]) and not offloaded and scan.length > 0
    written = _starts_to_write(parts, starts, chunks) if is_one_loop and starts and not is_differentiable else None
    if is_one_loop and (written is not None or not starts):
        chunks = replace(chunks, piece=scan.length)
    invariant = invariant_values([parts], constants)
    runner = Runner(parts, invariant, scan.reverse, scan.options.unroll, is_differentiable, starts=written)
    starts_of_sums = [carry[index] for index in summed]
    state = [carry[index] for index in carried], runner.spread(starts_of_sums)
    may_finish = finish if is_differentiable or counting else None
    sources = [*map(of_stack, xs)]
    (final, sums), ys, before = run_in_chunks(runner, chunks, sources, state, starting=starts, finish=may_finish)
    totals = runner.totals(sums, starts_of_sums)
    return replace_at(replace_at(list(carry), carried, final), summed, totals), ys, before


def _solves(loop: Loop) -> bool:
    return loop.recurrence is not None and not loop.recurrence.is_associative


def _starts_to_write(parts: Split, starting: Sequence[int], chunks: TimeLoop) -> Starts | None:
    """What the only loop writes where it runs over all steps; None if a loop for each chunk is better.

    It writes the carry leaves before each chunk at each step. That may cost no more than half of the bytes that it
    stacks in any case: not a matrix state, nor a cache.
    """
    (loop,), program = parts.loops, parts.program
    if parts.heuristics.batch != "costly" or loop.in_parallel or not {*starting} <= {*loop.carry}:
        return None
    if 2 * total_bytes(program.carry[index] for index in starting) > total_bytes(values_of(program.stacked)):
        return None
    return Starts(chunks, [loop.carry.index(index) for index in starting])
