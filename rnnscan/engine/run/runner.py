"""Run the stages of a split over a chunk of steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.zeros import zeros_of_value
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.fusion_barriers import fusion_barriers
from rnnscan.engine.analysis.split import Loop, Split
from rnnscan.engine.analysis.stacks import has_product, operands_of_products, parts_of_stacks, row_by_row
from rnnscan.engine.analysis.unreduced_sums import LoopSums, unreduced
from rnnscan.engine.loops.batched_values import Chunk, Source, StackPart, added, of_stack
from rnnscan.engine.loops.recurrences import EXECUTORS
from rnnscan.engine.loops.sharded_rows import ShardedRows, SumsByParts
from rnnscan.engine.loops.step_by_step import CycleLoop
from rnnscan.engine.loops.steps import LoopStep, Starts, run_steps
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.ir.leaves import split_list
from rnnscan.ir.program import Atom, Equation, Value, evaluate, read


# (step, constants, carry, xs, length) -> (carry, ys)
Scan: TypeAlias = Callable[[FlatStep, list[Any], list[Any], list[Any], int], tuple[list[Any], list[Any]]]


@dataclass(frozen=True)
class Runner:
    """Runs a split over chunks.

    Attributes:
        split: the split.
        invariant: the values that are the same at every step, by `invariant_values`.
        reverse: from the last step of a chunk to the first.
        unroll: of the loops, as in `lax.scan`.
        is_differentiable: whether JAX differentiates the loops. They are `lax.scan` then, and run in place else.
        rows: how rows lie on devices, where there are several.
        starts: the carry leaves before each chunk that the only loop writes, if it runs over all chunks.
        scan: runs loops as separate scans, with the engine's derivatives; None: they are loops of this trace.
    """

    split: Split
    invariant: Mapping[Value, Any]
    reverse: bool
    unroll: int | bool
    is_differentiable: bool = False
    rows: ShardedRows | None = None
    starts: Starts | None = None
    scan: Scan | None = None

    def __call__(
        self, steps: int, known: Mapping[Value, Any], carry: Sequence[Any], sums: Sequence[Any] = ()
    ) -> tuple[list[Any], list[Any], Chunk]:
        """Run a chunk.

        Args:
            steps: its steps.
            known: values of each step, stacked: those in `Program.known`, and other values that are known already.
            carry: the carry before the first step to run.
            sums: the totals so far, from `spread`, to which the sums over steps are added. Those in `by_parts` are one
                for each part of the rows.

        Returns:
            The carry after the last step, the sums, and the chunk, which has the stacked values.
        """
        split, once, choices = self.split, self.split.invariant, self.split.heuristics
        looped = [value for loop in split.loops for value in loop.results]
        without_loop = {equation for loop in split.loops if loop.in_parallel for equation in loop.body}
        batched = without_loop.union(split.outside_loops)
        equations = [equation for equation in split.varying if equation in batched]
        chunk = Chunk(steps, self.invariant, known, looped, equations, once, heuristics=choices)
        part_sums: dict[Atom, Any] = {}
        new_carry, new_sums = list(carry), list(sums)
        for loop, loop_sums in zip(split.loops, self._loop_sums, strict=True):
            if loop.is_step_by_step and self.scan is None:
                self._run_loop(loop, loop_sums, chunk, new_carry, new_sums)
            else:
                self._run_apart(loop, chunk, new_carry)
        for position, atom in enumerate(split.program.summed):
            if position in self._after_loops:
                new_sums[position] = self._added_by_parts(position, new_sums[position], chunk, part_sums)
            elif position not in split.accumulated:
                new_sums[position] = chunk.added_to(new_sums[position], atom)
        return new_carry, new_sums, chunk

    def spread(self, zeros: Sequence[Any]) -> list[Any]:
        """The sums over no steps, from zeros, or what is added to, in the shapes of the totals."""
        starts = (
            self.by_parts[position].rows.zeros(zero) if position in self.by_parts else zero
            for position, zero in enumerate(zeros)
        )
        types = (term.aval for loop_sums in self._loop_sums for term in loop_sums.terms)
        return [*starts, *(zeros_of_value(aval.update(dtype=at_least_float32(aval.dtype))) for aval in types)]

    def totals(self, sums: Sequence[Any], zeros: Sequence[Any], spread: Sequence[bool] | None = None) -> list[Any]:
        """The sums over all rows, in the shapes of zeros; in place of one that is to be spread, terms of it."""
        totals = list(sums[: len(zeros)])
        for loop, loop_sums in zip(self.split.loops, self._loop_sums, strict=True):
            # How many steps there were does not matter: `unreduced` takes no sum with a term that is always the same.
            chunk = Chunk(1, self.invariant, {}, loop_sums.terms, loop.body, heuristics=self.split.heuristics)
            of_terms = sums[loop_sums.first :][: len(loop_sums.terms)]
            chunk.add_sums(dict(zip(loop_sums.terms, of_terms, strict=True)))
            for position in loop_sums.unreduced:
                totals[position] = added(totals[position], chunk.sum(self.split.program.summed[position]))
        flags = spread or [False] * len(zeros)
        return [self._total(i, *leaves) for i, leaves in enumerate(zip(totals, zeros, flags, strict=True))]

    def _total(self, position: int, total: Any, zero: Any, spread: bool) -> Any:
        if self.rows is None or spread == (position in self.by_parts):
            return total
        return self.rows.shared(total) if spread else self.rows.total(total, zero)

    @cached_property
    def by_parts(self) -> dict[int, SumsByParts]:
        """The positions in `Program.summed` that each part of the rows sums alone, and their sums."""
        in_loops = [self._summable(loop.body, loop.accumulated) for loop in self.split.loops]
        return {position: sums for summable in [*in_loops, self._after_loops] for position, sums in summable.items()}

    @cached_property
    def _after_loops(self) -> dict[int, SumsByParts]:
        """Those whose terms are batched over time. No loop adds them up."""
        return self._summable(self.split.outside_loops, range(len(self.split.program.summed)))

    def _summable(self, equations: Sequence[Equation], positions: Iterable[int]) -> dict[int, SumsByParts]:
        if self.rows is None:
            return {}
        maker = {output: equation for equation in equations for output in equation.outputs}
        sums = SumsByParts(self.rows, maker, self._varies)
        return {position: sums for position in positions if sums.can_sum(self.split.program.summed[position])}

    @cached_property
    def _loop_sums(self) -> list[LoopSums]:
        """The sums that each loop accumulates."""
        sums, first = list[LoopSums](), len(self.split.program.summed)
        for loop in self.split.loops:
            sums.append(self._sums_of(loop, first))
            first += len(sums[-1].terms)
        return sums

    def _sums_of(self, loop: Loop, first: int) -> LoopSums:
        positions = [position for position in loop.accumulated if position not in self._after_loops]
        if self.rows is not None:
            return LoopSums(positions, {}, first)  # Rows that lie on several devices are reduced on each.
        summed = self.split.program.summed
        carry = [self.split.program.new_carry[position] for position in loop.carry]
        results = [*carry, *loop.from_body]
        whole = self.split.heuristics.runs_whole
        terms_of = {i: unreduced(summed[i], loop.body, results, self._varies, products=whole) for i in positions}
        instead = {position: values for position, values in terms_of.items() if values}
        return LoopSums([position for position in positions if position not in instead], instead, first)

    def _varies(self, atom: Atom) -> bool:
        return isinstance(atom, Value) and atom not in self.invariant

    def _added_by_parts(self, position: int, sums: Any, chunk: Chunk, part_sums: dict[Atom, Any]) -> Any:
        by_parts = self.by_parts[position]
        return by_parts.rows.add(sums, by_parts.sum(self.split.program.summed[position], chunk, part_sums))

    def _run_loop(self, loop: Loop, loop_sums: LoopSums, chunk: Chunk, carry: list[Any], sums: list[Any]) -> None:
        parts_of = parts_of_stacks(loop) if self.split.heuristics.slices_stacks else {}
        emitted = [value for value in loop.from_body if value not in parts_of]
        step = partial(self._step, loop, emitted, loop_sums)
        state = [carry[position] for position in loop.carry], [sums[place] for place in loop_sums.places]
        if self.is_differentiable:
            stacks = [*map(chunk.stacked, loop.to_body)]
            (new_carry, new_sums), from_body = lax.scan(
                step, state, stacks, length=chunk.steps, reverse=self.reverse, unroll=self._unroll(loop, chunk.steps)
            )
        else:
            run = self._run_steps(loop, step, state, chunk, [value.aval for value in emitted])
            (new_carry, new_sums), from_body, chunk.starts = run
        # Else XLA adds up the rows of each unrolled step, and then the steps.
        if self.split.heuristics.barrier_on_stacks:
            from_body = lax.optimization_barrier(from_body)
        for position, leaf in zip(loop.carry, new_carry, strict=True):
            carry[position] = leaf
        for place, total in zip(loop_sums.places, new_sums, strict=True):
            sums[place] = total
        new = dict(zip(emitted, from_body, strict=True))

        def stack(value: Value) -> Any:
            if value not in new:
                whole, part_of = parts_of[value]
                new[value] = part_of(stack(whole))
            return new[value]

        chunk.add({value: stack(value) for value in loop.from_body})
        chunk.make_again(loop.repeated, after=new_carry)

    def _run_steps(
        self, loop: Loop, step: LoopStep, state: tuple[Any, Any], chunk: Chunk, types: Sequence[Any]
    ) -> tuple[tuple[Any, Any], list[Any], list[Any]]:
        choices, unroll = self.split.heuristics, self._unroll(loop, chunk.steps)
        holds = self.unroll == 1 and unroll > 1 and has_product(loop)

        def source(value: Value) -> Source:
            part = chunk.varying.get(value)
            if isinstance(part, StackPart):
                return part.part
            stack = chunk.stacked(value)
            return of_stack(row_by_row(stack) if choices.batch == "inputs" else stack)

        steps = TimeLoop(chunk.steps, chunk.steps if unroll is True else max(1, min(unroll, chunk.steps)), self.reverse)
        hold = choices.barrier_every if holds else 0
        return run_steps(step, state, [*map(source, loop.to_body)], types, steps, hold=hold, starts=self.starts)

    def _unroll(self, loop: Loop, steps: int) -> int | bool:
        """The steps of one iteration of a loop."""
        return self.split.heuristics.unroll_of(loop.body, steps) if self.unroll == 1 else self.unroll

    def _run_apart(self, loop: Loop, chunk: Chunk, carry: list[Any]) -> None:
        """Run a loop in parallel over the steps, or as a separate scan."""
        start, recurrence = [carry[position] for position in loop.carry], loop.recurrence
        if recurrence is not None and not loop.is_step_by_step:
            apart = CycleLoop(recurrence, chunk, self.reverse, self.unroll)
            stacks, after = EXECUTORS[recurrence.kind](apart, start)
        else:
            assert self.scan is not None
            step = self.split.step_of(loop)
            constants, xs = [self.invariant[value] for value in step.constants], [*map(chunk.stacked, step.x)]
            after, stacks = self.scan(step, constants, start, xs, chunk.steps)
        for position, leaf in zip(loop.carry, after, strict=True):
            carry[position] = leaf
        chunk.add(dict(zip(loop.results, stacks, strict=True)))

    def _step(
        self,
        loop: Loop,
        emitted: Sequence[Value],
        loop_sums: LoopSums,
        state: tuple[list[Any], list[Any]],
        x: Sequence[Any],
    ) -> Any:
        carry, sums = state
        program = self.split.program
        values = {
            **self.invariant,
            **dict(zip((program.carry[position] for position in loop.carry), carry, strict=True)),
            **dict(zip(loop.to_body, x, strict=True)),
        }
        choices = self.split.heuristics
        held = operands_of_products(loop).intersection(emitted) if choices.barrier_on_stacks else ()
        barriers = fusion_barriers(loop.body, choices.machine) if choices.writes_repeated else ()
        for equation in loop.body:
            evaluate([equation], values)
            values.update((value, written(values[value])) for value in equation.outputs if value in barriers)
            # XLA would make it once more for the stack of all unrolled steps, in one large kernel.
            values.update(
                (value, lax.optimization_barrier(values[value])) for value in equation.outputs if value in held
            )
        new_carry = [read(program.new_carry[position], values) for position in loop.carry]
        return (new_carry, self._added_in_loop(loop, loop_sums, sums, values)), [values[value] for value in emitted]

    def _added_in_loop(
        self, loop: Loop, loop_sums: LoopSums, sums: list[Any], values: Mapping[Value, Any]
    ) -> list[Any]:
        totals, of_terms = split_list(sums, [len(loop_sums.positions)])
        varying, part_sums = {}, dict[Atom, Any]()
        if not self.by_parts.keys().isdisjoint(loop_sums.positions):
            varying = {value: jnp.expand_dims(leaf, 0) for value, leaf in values.items() if self._varies(value)}
        one_step = Chunk(1, self.invariant, varying, (), loop.body, heuristics=self.split.heuristics)
        new_totals = [
            self._added_by_parts(position, total, one_step, part_sums)
            if position in self.by_parts
            else added(total, read(self.split.program.summed[position], values))
            for position, total in zip(loop_sums.positions, totals, strict=True)
        ]
        return [
            *new_totals,
            *(added(total, values[term]) for term, total in zip(loop_sums.terms, of_terms, strict=True)),
        ]


def invariant_values(splits: Sequence[Split], constants: Sequence[Any]) -> dict[Value, Any]:
    """The values that splits of the same program compute once, because they are the same at every step."""
    values = dict(zip(splits[0].program.invariant, constants, strict=True))
    for split in splits:
        evaluate([equation for equation in split.invariant if equation.outputs[0] not in values], values)
    return values


def written(value: Any) -> Any:
    """A value that XLA for a CPU writes to memory, and does not fuse with its readers.

    There XLA drops `lax.optimization_barrier` before it fuses (jax 0.10.0). It inlines no call with this attribute.
    """
    with set_xla_metadata(inlineable="false"):
        return _barrier(value)


_barrier = jax.jit(lax.optimization_barrier)
