"""The backward pass: chunk by chunk from the last step to run to the first.

For each chunk there are two runs over one program, the vjp of a step. The first goes forward and recomputes the carry
leaves that were kept at the beginning of the chunk only. The second goes back and carries the cotangent of the carry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.step_wrappers import type_of_step
from rnnscan._util.zeros import zeros_of_type, zeros_of_value
from rnnscan.engine import passes
from rnnscan.engine.analysis.leaves import replace_at, split_list
from rnnscan.engine.analysis.split import Split
from rnnscan.engine.analysis.sum_placement import split_with_sums
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.loops.batched_values import NextPart, StackPart
from rnnscan.engine.loops.indexing import item_of, item_or, moved
from rnnscan.engine.loops.sharded_rows import sharded_rows
from rnnscan.engine.loops.stopping import CountedChunks
from rnnscan.engine.loops.time_loop import TimeLoop, before_each
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive.scan import Scan
from rnnscan.engine.run.forward import Saved, to_device
from rnnscan.engine.run.runner import Runner, invariant_values
from rnnscan.engine.run.stacks import has_product
from rnnscan.engine.run.step_vjp import Cotangents, step_vjp, vjp_program
from rnnscan.engine.units.mesh import unit_mesh
from rnnscan.ir.dataflow import depending, needed
from rnnscan.ir.program import Atom, Equation, Program, Value, inputs_of, outputs_of, total_bytes, values_of
from rnnscan.ir.traits import Kind


@dataclass(frozen=True)
class BackwardPlan:
    """How a backward pass runs.

    Attributes:
        scan: the parameters of the scan.
        heuristics: the choices for it.
        residuals: what it keeps.
    """

    scan: Scan
    heuristics: Heuristics
    residuals: ResidualPlan


def run_backward(
    plan: BackwardPlan,
    vjp: core.ClosedJaxpr,
    cotangents: Cotangents,
    saved: Saved,
    ct_carry: Sequence[Any],
    ct_ys: Sequence[Any],
) -> tuple[list[Any], list[Any], list[Any]]:
    """The cotangents of constants, of the initial carry and of xs: those that `cotangents` lists.

    Args:
        plan: how it runs.
        vjp: the vjp of a step, from `step_vjp`.
        cotangents: the leaves that have a cotangent.
        saved: the saved values.
        ct_carry: the cotangents of the final carry: those of `cotangents.moving`.
        ct_ys: the cotangents of `cotangents.ys`.
    """
    chunks = _BackwardChunks.of(plan, vjp, cotangents, saved, ct_carry)
    zeros = zeros_of_sums(vjp, cotangents, plan.residuals, saved.constants)
    state = ([ct_carry[index] for index in chunks.changing], chunks.transpose.spread(zeros))
    (changed, sums), ct_xs = chunks.run(state, saved, ct_ys)
    ct_carry = replace_at(ct_carry, chunks.changing, changed)
    # Those of copies have a total for each part of the rows that a copy is spread over, and are not rounded.
    copies = [dict(plan.scan.copied).get(index) for index in cotangents.constants]
    totals = chunks.transpose.totals(sums, zeros, [copy is not None and copy.rows is not None for copy in copies])
    triples = zip(cotangents.constants, copies, totals, strict=True)
    of_constants = [leaf.astype(saved.constants[i].dtype) if copy is None else leaf for i, copy, leaf in triples]
    return of_constants, [ct_carry[cotangents.moving.index(index)] for index in cotangents.carry], ct_xs


def splits_of_derivative(
    plan: ScanPlan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[Split | None, Split] | None:
    """The splits of a step's backward pass, for reports: of the run that recomputes carry leaves, if any, and the rest.

    Args:
        plan: how the scan runs.
        constants: what the step closes over. Here and below, all floating-point leaves are differentiated.
        carry: the initial carry.
        xs: the inputs.

    Returns:
        The splits; None if nothing is differentiated, or JAX has no derivative of the step.
    """
    step = plan.step
    wanted = [jnp.issubdtype(jax.typeof(leaf).dtype, jnp.inexact) for leaf in (*constants, *carry, *xs)]
    final, ys = split_list(step.moving(wanted), [len(step.carry)])
    stacked = lambda atom: jax.ShapeDtypeStruct((1, *atom.shape), atom.dtype)  # noqa: E731
    if not any([*final, *ys]):
        return None
    saved = Saved([*constants], [*carry], {}, {}, {}, {}, [*xs], [*map(stacked, step.kept)])
    cotangents = Cotangents.of(step, wanted, final, ys)
    ct_carry = [jnp.zeros_like(carry[index]) for index in cotangents.moving]
    try:
        vjp = step_vjp(plan, cotangents)
        of_scan = BackwardPlan(plan.scan, plan.heuristics, plan.residuals)
        chunks = _BackwardChunks.of(of_scan, vjp, cotangents, saved, ct_carry)
    except (NotImplementedError, TypeError, ValueError):  # JAX's errors where a primitive has no transpose.
        return None
    return chunks.recompute.split if chunks._recomputes else None, chunks.transpose.split


@dataclass(frozen=True)
class _BackwardChunks:
    """The vjp of a step, split for its two runs over a chunk.

    Attributes:
        plan: how the scan runs.
        recompute: the run that recomputes carry leaves.
        transpose: the run that carries the cotangents of the carry.
        changing: the cotangents that it carries, by position in `Cotangents.moving`. Others are the same at every step.
        ct_ys: the number of leaves of y that have a cotangent.
    """

    plan: BackwardPlan
    recompute: Runner
    transpose: Runner
    changing: list[int]
    ct_ys: int

    @staticmethod
    def of(
        plan: BackwardPlan,
        vjp: core.ClosedJaxpr,
        cotangents: Cotangents,
        saved: Saved,
        ct_carry: Sequence[Any],
    ) -> "_BackwardChunks":
        sizes = (len(saved.constants), len(saved.xs))
        program, changing = vjp_program(vjp, cotangents, plan.residuals, sizes)
        program = passes.apply(passes.backward(plan.heuristics), program)
        views = _views(program, len(plan.residuals.recomputed))
        shared = frozenset(needed(program.equations, views[0].new_carry))
        batches, choices = partial(plan.heuristics.should_batch, shared=shared), plan.heuristics
        scan, options = plan.scan, plan.scan.options
        splits = [split_with_sums(view, choices, batches, options.parallel) for view in views]
        # Where devices share units, a loop would gather values at each step that are gathered once for a chunk.
        shares_units = unit_mesh([*saved.constants, *saved.initial]) is not None
        if not shares_units and _reads_more_than_it_saves(splits[1]):
            splits = [split_with_sums(view, choices, lambda *_: False, options.parallel) for view in views]
        fixed = [leaf for index, leaf in enumerate(ct_carry) if index not in changing]
        invariant = invariant_values(splits, [*saved.constants, *fixed])
        rows = sharded_rows([*saved.initial, *map(type_of_step, saved.xs)], other_arrays=saved.constants)
        return _BackwardChunks(
            plan,
            recompute=Runner(splits[0], invariant, reverse=scan.reverse, unroll=options.unroll),
            transpose=Runner(splits[1], invariant, reverse=not scan.reverse, unroll=options.unroll, rows=rows),
            changing=changing,
            ct_ys=len(cotangents.ys),
        )

    def run(self, state: Any, saved: Saved, ct_ys: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Carry `(cotangent of the carry, sums)` back through all chunks."""
        repeats = self.plan.residuals.repeats
        chunks = TimeLoop(self.plan.scan.length, self._chunk, self.plan.scan.reverse).back
        carries = [*saved.carries.values()]
        stacks = [*saved.repeated.values(), *saved.xs, *saved.kept, *ct_ys]
        types = [atom.aval for atom in self.transpose.split.program.stacked]
        if not self.plan.scan.length:
            return state, [zeros_of_type(aval, 0) for aval in types]
        starts = saved.starts if self._recomputes else {}

        def transpose_chunk(state: Any, first: Any, number: Any, steps: int) -> tuple[Any, list[Any]]:
            parts = [StackPart(stack, first, steps) for stack in (*carries, *stacks)]
            before = [
                _before(saved.repeated[y], saved.initial[index], first, steps, reverse=self.plan.scan.reverse)
                for index, y in repeats.items()
            ]
            of_chunk = [saved.initial[i] if number is None else item_of(leaf, number) for i, leaf in starts.items()]
            new = {
                index: NextPart(saved.carries[index], first, steps, last, self.plan.scan.reverse)
                for index, last in saved.final.items()
            }
            return self._transpose_chunk(state, parts, [*before, *of_chunk], steps, new)

        if saved.count is not None:
            counted = CountedChunks(chunks.length, chunks.piece, jnp.max(saved.count))
            return counted.run_back_in_place(transpose_chunk, state, types)
        return chunks.run_in_place(transpose_chunk, state, types)

    @property
    def _chunk(self) -> int:
        """The steps of a chunk."""
        if self._is_one_loop:
            return max(1, self.plan.scan.length)
        split = self.transpose.split
        is_free = self.plan.scan.options.chunk is None and not split.loops and not self._recomputes
        alone = is_free and split.heuristics.runs_steps_alone(split.outside_loops, self.transpose.invariant)
        return 1 if alone else self.plan.residuals.chunk

    @property
    def _is_one_loop(self) -> bool:
        """Whether nothing is batched over time, so that chunks would only copy the stacks."""
        split = self.transpose.split
        looped = (
            not self.plan.residuals.offloaded
            and len(split.loops) == 1
            and not split.loops[0].in_parallel
            and not split.outside_loops
        )
        return looped and not self._recomputes and not self.plan.residuals.repeats

    @cached_property
    def _recomputes(self) -> bool:
        """Whether the vjp reads a carry leaf that is kept at the start of a chunk only."""
        read = {*inputs_of(self.transpose.split.varying), *values_of(self.transpose.split.program.outputs)}
        return not read.isdisjoint(self.recompute.split.program.stacked)

    def _transpose_chunk(
        self,
        state: Any,
        stacks: Sequence[StackPart],
        starts: list[Any],
        steps: int,
        new: Mapping[int, Any],
    ) -> tuple[Any, list[Any]]:
        """Carry the cotangent of the carry back through a chunk of steps, and add to the sums over them.

        Args:
            state: the cotangent of the carry, and the sums.
            stacks: the values kept of each step, and the cotangents of y.
            starts: the values kept at the start of the chunk.
            steps: the number of its steps.
            new: the new values of kept carry leaves.
        """
        residuals, reverse = self.plan.residuals, self.plan.scan.reverse
        xs = len(stacks) - sum(map(len, (residuals.every_step, residuals.repeated_ys, residuals.kept))) - self.ct_ys
        sizes = [len(residuals.every_step), len(residuals.repeated_ys), xs + len(residuals.kept)]
        kept, repeated, x_and_kept, ct_ys = split_list(stacks, sizes)
        befores, starts = split_list(starts, [len(residuals.repeats)])
        offloaded = [xs + index for index in residuals.offloaded]
        of_chunk = [x_and_kept[index].copied() for index in offloaded]
        x_and_kept = to_device(replace_at(x_and_kept, offloaded, of_chunk), offloaded)
        after = dict(zip(residuals.repeated_ys, (part.copied() for part in repeated), strict=True))
        carry = dict(zip(residuals.every_step, kept, strict=True))
        for (index, y), before in zip(residuals.repeats.items(), befores, strict=True):
            carry[index] = before_each(after[y], before, reverse=reverse)
        new = {**carry, **new, **{index: after[y] for index, y in residuals.repeats.items()}}
        new_carry = [new[index] for index in residuals.restored]
        known = [*(carry[index] for index in sorted(carry)), *x_and_kept, *new_carry, *ct_ys]
        values = dict(zip(self.recompute.split.program.known, known, strict=True))
        if self._recomputes:
            recomputed = self.recompute(steps, values, starts)[2]
            stacked = values_of(self.recompute.split.program.stacked)
            values = recomputed.varying | {value: recomputed.stacked(value) for value in stacked}
        ct_carry, sums, chunk = self.transpose(steps, values, *state)
        return (ct_carry, sums), [chunk.stacked(atom) for atom in self.transpose.split.program.stacked]


def _before(after: Any, initial: Any, first: Any, steps: int, *, reverse: bool) -> Any:
    """A carry leaf that y repeats, before a chunk: y at the last step before it, or the initial leaf.

    Args:
        after: y at all steps.
        initial: the leaf before the first step of all to run.
        first: the first step of the chunk.
        steps: its steps.
        reverse: whether the steps run from the last to the first.
    """
    return item_or(after, *((moved(first, steps), len(after)) if reverse else (moved(first, -1), -1)), initial)


def _views(program: Program, recomputed: int) -> tuple[Program, Program]:
    """The vjp as the loop that recomputes carry leaves, and as the loop that carries the cotangents."""
    carry, new_carry = program.carry[:recomputed], program.new_carry[:recomputed]
    transpose = replace(program, carry=program.carry[recomputed:], new_carry=program.new_carry[recomputed:])
    after = _read_after(transpose, dict(zip(carry, new_carry, strict=True)))
    stacked = tuple(after.get(leaf, leaf) for leaf in carry)
    new_leaves = set(after.values())
    equations = tuple(equation for equation in transpose.equations if new_leaves.isdisjoint(equation.outputs))
    recompute = replace(program, carry=carry, new_carry=new_carry, summed=(), stacked=stacked)
    return recompute, replace(transpose, equations=equations, known=(*program.known, *stacked))


def _read_after(transpose: Program, new: Mapping[Value, Atom]) -> dict[Value, Value]:
    """The recomputed carry leaves that the vjp reads only to make their new values, and these.

    The loop that recomputes them has made the new values. So a key-value cache is copied once less at each step.
    """
    maker = transpose.maker
    after = {
        leaf: atom
        for leaf, atom in new.items()
        if isinstance(atom, Value) and atom in maker and len(maker[atom].outputs) == 1
    }
    while True:
        equations = [equation for equation in transpose.equations if equation.outputs[0] not in {*after.values()}]
        read = {*inputs_of(needed(equations, transpose.outputs)), *values_of(transpose.outputs)}
        if read.isdisjoint(after):
            return after
        after = {leaf: value for leaf, value in after.items() if leaf not in read}


def _reads_more_than_it_saves(split: Split) -> bool:
    """Whether loops read more batched values than the products of these would read of matrices at each step."""
    fixed = {*split.program.invariant, *outputs_of(split.invariant)}
    stackable = {*outputs_of(split.batched)}
    if any(map(has_product, split.loops)):
        # A loop with a product would read kept values as well as functions of them. Without one it is fused with the
        # functions: a soft dynamic time warping takes 1.7 of the time with its functions batched.
        stackable = depending(split.batched, outputs_of(filter(_is_product, split.batched)))
    read = total_bytes(value for loop in split.loops for value in loop.to_body if value in stackable)
    return split.heuristics.reads_more_than_it_saves(read, split.batched, fixed)


def _is_product(equation: Equation) -> bool:
    return equation.kind is Kind.PRODUCT


# Zeros come from the arrays that they are cotangents of, and not from jnp.zeros: under shard_map they must vary over
# the same axes.


def zeros_of_sums(
    vjp: core.ClosedJaxpr, cotangents: Cotangents, residuals: ResidualPlan, constants: Sequence[Any]
) -> list[Any]:
    """The starts of the sums of cotangents: of their types, which have an axis of rows under `jax.vmap`."""

    def zero(aval: Any, constant: Any) -> Any:
        if aval.shape == constant.shape:
            return zero_sum(constant)
        return zeros_of_value(aval.update(dtype=at_least_float32(aval.dtype)))

    of_step = vjp.out_avals[len(residuals.recomputed) :]
    return [zero(aval, constants[i]) for aval, i in zip(of_step, cotangents.constants, strict=False)]


def zero_sum(constant: Any) -> Any:
    """The start of a sum of cotangents of a constant, in at least float32."""
    return lax.full_like(constant, 0, dtype=at_least_float32(jnp.result_type(constant)))
