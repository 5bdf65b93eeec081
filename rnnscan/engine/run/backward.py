"""The backward pass: chunk by chunk from the last step to run to the first.

A run over each chunk carries the cotangent of the carry back. Where it reads carry leaves that were kept at the
beginning of the chunk only, another run over the chunk comes before it, in the order of the scan, and computes these
again.
"""

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp

from rnnscan._util.step_wrappers import type_of_step
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.loops.batched_values import of_stack
from rnnscan.engine.loops.sharded_rows import sharded_rows
from rnnscan.engine.loops.stopping import CountedChunks
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.plan.schedule import Schedule
from rnnscan.engine.run.in_chunks import Recompute, run_in_chunks
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.engine.run.saved import Saved
from rnnscan.engine.run.step_vjp import Vjp
from rnnscan.engine.units.mesh import unit_mesh
from rnnscan.ir.leaves import replace_at
from rnnscan.ir.program import Value


def run_backward(
    vjp: Vjp, heuristics: Heuristics, saved: Saved, ct_carry: Sequence[Any], ct_ys: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """The cotangents of constants, of the initial carry and of xs: those that `vjp.cotangents` lists.

    Args:
        vjp: the vjp of a step.
        heuristics: the choices for the scan.
        saved: the saved values.
        ct_carry: the cotangents of the final carry: those of `cotangents.active`.
        ct_ys: the cotangents of `cotangents.ys`.
    """
    scan, unroll, cotangents, changing = vjp.scan, vjp.scan.options.unroll, vjp.cotangents, vjp.changing
    schedule = schedule_of(vjp, heuristics, [*saved.constants, *saved.initial])
    fixed = [leaf for index, leaf in enumerate(ct_carry) if index not in changing]
    invariant = invariant_values(schedule.splits, [*saved.constants, *fixed])
    rows = sharded_rows([*saved.initial, *map(type_of_step, saved.xs)], other_arrays=saved.constants)
    runner = Runner(schedule.main, invariant, not scan.reverse, unroll, rows=rows)
    recompute = None
    if schedule.recompute is not None:
        starts = [(saved.initial[leaf], stack) for leaf, stack in saved.starts.items()]
        recompute = Recompute(Runner(schedule.recompute, invariant, scan.reverse, unroll), starts)
    before, x_and_kept, after = saved.sources(vjp.residuals, reverse=scan.reverse)
    sources = [*(before[leaf] for leaf in sorted(before)), *x_and_kept, *after, *map(of_stack, ct_ys)]
    chunk = _chunk(vjp, schedule, invariant)
    chunks: TimeLoop | CountedChunks = TimeLoop(scan.length, chunk, scan.reverse).back
    if saved.count is not None:
        chunks = CountedChunks(scan.length, chunk, jnp.max(saved.count))
    zeros = vjp.zeros()
    state = [ct_carry[index] for index in changing], runner.spread(zeros)
    (changed, sums), ct_xs, _ = run_in_chunks(runner, chunks, sources, state, recompute=recompute)
    ct_carry = replace_at(ct_carry, changing, changed)
    # Those of copies have a total for each part of the rows that a copy is spread over, and are not rounded.
    copies = [dict(scan.copied).get(index) for index in cotangents.constants]
    totals = runner.totals(sums, zeros, [copy is not None and copy.rows is not None for copy in copies])
    triples = zip(cotangents.constants, copies, totals, strict=True)
    of_constants = [leaf.astype(saved.constants[i].dtype) if copy is None else leaf for i, copy, leaf in triples]
    return of_constants, [ct_carry[cotangents.active.index(index)] for index in cotangents.carry], ct_xs


def schedule_of(vjp: Vjp, heuristics: Heuristics, leaves: Sequence[Any]) -> Schedule:
    """How a chunk runs. `leaves`: the constants and the initial carry."""
    # Where devices share units, a loop would gather values at each step that are gathered once for a chunk.
    one_loop, recomputed = unit_mesh(leaves) is None, len(vjp.residuals.recomputed)
    return Schedule.of(vjp.program, heuristics, vjp.scan.options.parallel, recomputed, may_batch_nothing=one_loop)


def _chunk(vjp: Vjp, schedule: Schedule, fixed: Collection[Value]) -> int:
    """The steps of a chunk. `fixed`: the values that are the same at every step."""
    split, scan, residuals = schedule.main, vjp.scan, vjp.residuals
    if schedule.recompute is not None:
        return residuals.chunk
    if split.is_only_a_loop and not split.loops[0].in_parallel and not residuals.offloaded:
        # Nothing is batched over time, so that chunks would only copy the stacks. In a loop that stops they would be
        # two further loops, and compiling took twice as long (jax 0.10.2).
        return 1 if scan.is_counted else max(1, scan.length)
    is_free = scan.options.chunk is None and not split.loops
    alone = is_free and split.heuristics.runs_steps_alone(split.outside_loops, fixed)
    return 1 if alone else residuals.chunk
