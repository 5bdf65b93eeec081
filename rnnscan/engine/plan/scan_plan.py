"""The fission engine's decisions about one scan: the split, the chunk, and the layout of the kept values."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax.numpy as jnp

from rnnscan.engine import passes
from rnnscan.engine.analysis.carried_sums import as_sums
from rnnscan.engine.analysis.cones import Cones
from rnnscan.engine.analysis.derivative_reads import cones_of_derivative, read_by_derivatives
from rnnscan.engine.analysis.expensive_choice import values_to_keep
from rnnscan.engine.analysis.expensive_values import cones_with_all_carries
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.forward_rules import forward_rules
from rnnscan.engine.analysis.recompute_costs import RecomputeCosts
from rnnscan.engine.analysis.restore import derives_from_result
from rnnscan.engine.analysis.saving_calls import saves_residuals, saving_equation
from rnnscan.engine.analysis.split import Split, split
from rnnscan.engine.costs.chunk import StepBytes, near_divisor
from rnnscan.engine.costs.costs import unbatchable, work_of_products
from rnnscan.engine.costs.heuristics import Heuristics, of_scan
from rnnscan.engine.one_kernel.fits import OneKernel
from rnnscan.engine.plan.matrix_search import MatrixSearch, find_matrix_states
from rnnscan.engine.plan.residuals import CarryLeaf, KeptValue, ResidualPlan, Storage
from rnnscan.engine.plan.schedule import Schedule
from rnnscan.engine.primitive.scan import Scan
from rnnscan.ir.components import Components
from rnnscan.ir.linear import linearly_recomputable
from rnnscan.ir.program import (
    Atom,
    Equation,
    Program,
    inputs_of,
    nominal_size,
    outputs_of,
    total_bytes,
    values_of,
)
from rnnscan.ir.traits import Kind


# The steps that Newton's method solves in parallel.
STEPS_AT_ONCE = 512


@dataclass(frozen=True)
class ScanPlan:
    """How a scan over a step runs. It holds no arrays.

    Attributes:
        step: the step.
        scan: its other parameters. A loop whose number of steps is not known keeps all carry leaves before every step.
        choices: the heuristics. The backward pass is traced later, and has those of the forward pass.
        kernel: the loop as one kernel; None: it runs as large loops do.
        cheap: carry leaf -> whether it is cheap to recompute, of those that were estimated. The choice of kept values
            does not matter to it, so plans of one step that keep other values share it.
    """

    step: FlatStep
    scan: Scan
    choices: Heuristics
    kernel: OneKernel | None = None
    cheap: dict[int, bool] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def heuristics(self) -> Heuristics:
        """The heuristics of this scan."""
        options = self.scan.options
        return of_scan(self.choices, options.parallel, options.whole, is_small=self.kernel is not None)

    def keeping_expensive_values(self) -> "ScanPlan":
        """The plan with the values among the kept ones that take long to compute again.

        They take at most `Heuristics.expensive_bytes` in all, and but in a loop that is one kernel, at most as many
        bytes as the values that are kept in any case.
        """
        most_bytes = self.heuristics.expensive_bytes // max(1, self.scan.length)
        if not self.heuristics.runs_whole:
            most_bytes = min(most_bytes, self._kept_bytes)
        step, candidates = self.step, self._recomputable_candidates
        leaves, new_leaves = [step.carry[i] for i in candidates], [step.new_carry[i] for i in candidates]
        looped = Components(step.program.equations, leaves, new_leaves).loops()
        cheap, machine = self._cheap_carries, self.heuristics.machine
        values = values_to_keep(step.program, step.kept, self.repeats, candidates, cheap, looped, machine, most_bytes)
        return replace(self, step=step.keeping_too(*values))

    @cached_property
    def for_derivatives(self) -> "ScanPlan":
        """The plan where something is differentiated."""
        options = self.scan.options
        if not options.chooses_kept_values:
            return self
        scan = replace(self.scan, options=replace(options, chooses_kept_values=False))
        return replace(self, step=keeping_residuals(self.step), scan=scan).keeping_expensive_values()

    @cached_property
    def repeats(self) -> dict[int, int]:
        """Carry leaf -> y leaf that is the same value, of which one is kept."""
        return {} if self.scan.is_counted else self.step.repeats

    @cached_property
    def residuals(self) -> ResidualPlan:
        """The arrays that stay in memory between the passes.

        Carry leaves that follow from the others by linear recurrences, without much larger values on the way, are
        stored at the start of each chunk only, and recomputed in between. The c of an LSTM inside additive attention is
        stored, because recomputing it would recompute the attention. A scalar is stored, because it saves next to
        nothing. Chunks of one step have nothing in between.
        """
        recomputed = [] if self.chunk == 1 else self._recomputable_carries
        between = Storage.FIRST_STEP if self.unread_carries.issuperset(recomputed) else Storage.CHUNKS
        if self.scan.is_counted:  # But for the count of the steps, which no derivative reads.
            recomputed, between = [0], Storage.FIRST_STEP
        restored = self._restored(recomputed)

        def row(index: int) -> CarryLeaf:
            y = self.repeats.get(index)
            other = Storage.EVERY_STEP if y is None else Storage.OUTPUT
            storage = between if index in recomputed else other
            return CarryLeaf(storage, y, index not in self.unread_carries, index in restored)

        leaves = tuple(map(row, range(len(self.step.carry))))
        return ResidualPlan(self.scan.length, self.chunk, leaves, tuple(self._kept_values()))

    def _kept_values(self) -> Iterator[KeptValue]:
        """The rows of the step's kept values."""
        step = self.step
        offload = self.scan.options.offload
        yield from (KeptValue("name", label, label in offload) for label in step.kept_labels)
        yield from (KeptValue("carry", leaf, is_offloaded=False) for leaf in step.parts)
        for value in step.expensive:
            equation = step.program.maker[value]
            yield KeptValue("inner scan" if saves_residuals(equation) else "unnamed", equation.name, False)

    @cached_property
    def _recomputable_carries(self) -> list[int]:
        """The carry leaves that are recomputed in chunks of several steps."""
        recomputed = {*self._cheap_carries(self.step.kept), *self.unread_carries}
        # What nothing reads is not recomputed either.
        return [index for index in self._recomputable_candidates if index in recomputed]

    @property
    def _recomputable_candidates(self) -> list[int]:
        """The carry leaves that may be recomputed: arrays that y does not repeat."""
        if self.scan.is_counted or self.heuristics.runs_whole:
            return []
        arrays = [index for index, leaf in enumerate(self.step.carry) if nominal_size(leaf.shape) > 1]
        return [index for index in arrays if index not in self.repeats]

    def _cheap_carries(self, kept: Collection[Atom]) -> list[int]:
        """The carry leaves that loops can recompute cheaply if these values are kept."""
        step, kept = self.step, {*kept}
        equations = [equation for equation in step.program.equations if not kept.issuperset(equation.outputs)]
        recomputable = linearly_recomputable(
            equations, step.carry, step.new_carry, candidates=self._recomputable_candidates
        )
        self.cheap.update({index: self._costs.is_cheap(index) for index in recomputable if index not in self.cheap})
        return [index for index in recomputable if self.cheap[index]]

    @cached_property
    def _costs(self) -> RecomputeCosts:
        return RecomputeCosts(self.step.program, self.heuristics)

    def _restored(self, recomputed: Collection[int]) -> list[int]:
        """Carry leaves whose new values the backward pass reads from the stacks: those before the next steps.

        That spares it a product, or a function: with `h' = tanh(z)` it needs no z. To read them for less takes longer
        than to compute them.
        """
        if self.scan.is_counted:  # The last step is not known.
            return []
        maker, cones = self.step.program.maker, cones_of_derivative(self.step.program)
        candidates = [index for index in range(len(self.step.carry)) if index not in recomputed]
        return [index for index in candidates if _is_worth_restoring(self.step.new_carry[index], maker, cones)]

    @cached_property
    def chunk(self) -> int:
        """Steps of a chunk."""
        length, options = self.scan.length, self.scan.options
        if options.chunk is not None:
            return max(1, min(length, options.chunk))
        if self.heuristics.runs_whole and self.kernel is None:  # A step on its own moves what it has to the host.
            return 1 if options.offload else max(1, length)
        if options.parallel is not None:
            return near_divisor(length, max(1, min(length, options.parallel.chunk or STEPS_AT_ONCE)))
        return self.choices.chunk(length, lambda: self.for_derivatives._step_bytes())

    @cached_property
    def written(self) -> Split:
        """The split of the step as written, with its kept values, for reports."""
        choices, solve = self.heuristics, self.scan.options.parallel
        return split(self.step.program, choices, should_batch=choices.should_batch_forward, solve=solve)

    @cached_property
    def recomputed(self) -> Split:
        """The split of the step for recomputation on the backward pass: every carry is known."""
        step = self.step
        known, wanted = (*step.carry, *step.x), (*step.new_carry, *step.y)
        program = replace(step.program, known=known, carry=(), new_carry=(), stacked=wanted)
        return split(program, self.heuristics, solve=self.scan.options.parallel)

    def forward(self, kept: Collection[int] | None = None) -> Split:
        """The split that runs.

        Args:
            kept: the leaves of the carry that stay in it. Others that only add up are sums. None: all stay.
        """
        program = replace(self.step.program, stacked=self.step.y)
        if kept is not None:
            program = as_sums(program, {self.step.carry[index] for index in kept})
        return Schedule.of(program, self.heuristics, self.scan.options.parallel).main

    @property
    def saving(self) -> Program:
        """The step's program with y, and the values for the backward pass: the kept values, then the kept carries."""
        step, carry = self.step, (self.step.carry[index] for index in self.residuals.every_step)
        return forward_rules(replace(step.program, stacked=(*step.y, *step.kept, *carry)))

    @cached_property
    def unread_carries(self) -> frozenset[int]:
        """The carry leaves that the derivative does not read, because expensive values are kept in their place."""
        if not self.step.expensive:
            return frozenset()
        cones = cones_with_all_carries(self.step.program, self.step.kept)
        return frozenset(index for index in range(len(self.step.carry)) if not cones.reads(index))

    @property
    def _kept_bytes(self) -> int:
        """`StepBytes.kept`."""
        step = self.step
        starts = total_bytes(step.carry[index] for index in self._recomputable_carries)
        return total_bytes([*step.carry, *step.x, *values_of(step.kept)]) - starts

    def _step_bytes(self) -> StepBytes:
        step = self.step
        input_bytes = total_bytes([*step.carry, *step.x])
        starts = [step.carry[index] for index in self._recomputable_carries]
        return StepBytes(
            # The batched values, their cotangents, the carry, and x.
            made=2 * total_bytes(outputs_of(self.recomputed.batched)) + input_bytes,
            given=input_bytes,
            kept=self._kept_bytes,
            starts=total_bytes(starts),
            operations=self._operations_at_each_step(),
        )

    def _operations_at_each_step(self) -> int | None:
        """`StepBytes.operations`."""
        equations = self.step.program.equations
        products = [equation for equation in equations if equation.kind is Kind.PRODUCT]
        if not products and not any(map(unbatchable, equations)):
            return None
        return work_of_products(products, self.step.program.fixed)[0]

    # Matrix states

    @cached_property
    def matrix_search(self) -> MatrixSearch:
        """The matrix states of the step, and how they run in chunkwise form."""
        step = replace(self.step, program=passes.apply(passes.MATRIX_STATES, self.step.program))
        return find_matrix_states(step, replace(self.choices, batch="everything"))

    @cached_property
    def state_chunk(self) -> int | None:
        """The steps of a chunk of matrix states; None if the step runs without the chunkwise form."""
        windows = self.scan.options.windows
        if windows is None or not self.matrix_search.groups:
            return None
        return self.choices.state_chunk_of(windows.longest, self.scan.options.chunk)

    @property
    def matrix_split(self) -> Split:
        """The split of the step whose states run in chunkwise form."""
        split, chunk = self.matrix_search.split, self.state_chunk
        assert split is not None
        assert chunk is not None
        return replace(split, heuristics=replace(split.heuristics, state_chunk=chunk))

    def window(self, length: int) -> int | None:
        """The steps of a window of matrix states, for a scan or segment of this length; None: it runs step by step."""
        if self.state_chunk is None:
            return None
        return self.choices.window(length, self.matrix_split.heuristics.state_chunk_within(length))

    def keeps_carry(self, window: int) -> bool:
        """Whether the carry is kept before each window. A segment that is one window runs again as it is."""
        windows = self.scan.options.windows
        return window < self.scan.length or (windows is not None and not windows.in_segments)

    @property
    def loops_forward(self) -> bool:
        """Whether a loop runs matrix states where nothing is differentiated."""
        return self.choices.loops_states_forward and self.scan.options.parallel is None

    @property
    def loops_windows(self) -> bool:
        """Whether a loop runs the forward pass of windows too where something is differentiated.

        With a decay for each key the chunkwise form takes longer forward than the loop. Kept names come from the form.
        """
        states = [state for group in self.matrix_search.groups for state in group.states]
        per_key = bool(states) and all(state.decays_per_key for state in states)
        return self.loops_forward and per_key and not self.step.kept_labels

    def of_part(self, step: FlatStep, length: int) -> "ScanPlan":
        """The plan of a scan over a part of the step, or over the step without its matrix states."""
        options = replace(self.scan.options, kept=step.kept_labels, windows=None, chooses_kept_values=False, whole=None)
        scan = replace(self.scan, constants=len(step.constants), carry=len(step.carry), length=length, options=options)
        return ScanPlan(step, scan, self.choices)


def _is_worth_restoring(leaf: Atom, maker: Mapping[Atom, Equation], cones: Cones) -> bool:
    equation = maker.get(leaf)
    if equation is None or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return False
    if saves_residuals(equation):
        return True  # Else the call would run again for it.
    products = any(spared.kind is Kind.PRODUCT for spared in cones.of(equation).equations)
    return products or derives_from_result(equation)


def keeping_residuals(step: FlatStep) -> FlatStep:
    """The step with the residuals of its scans, and the results that it reads, among its kept values.

    They keep the same values between the passes as they would alone. Else each level of nested scans runs the levels
    below once more on the backward pass.

    A scan that is batched over time, because it lies in no loop, is left as it is.
    """
    program = step.program
    looped = Components(program.equations, program.carry, program.new_carry).loops()
    saving = {old: new for old in program.equations if old in looped and (new := saving_equation(old))}
    if not saving:
        return step
    equations = tuple(saving.get(equation, equation) for equation in program.equations)
    read = {*inputs_of(equations), *read_by_derivatives(replace(program, equations=equations))}
    # The others are known as the carry before the next step, or nothing reads them.
    results = read - {*program.new_carry, *step.kept}
    kept = [
        value for old, new in saving.items() for value in new.outputs if value in results or value not in old.outputs
    ]
    return replace(step, program=replace(program, equations=equations)).keeping_too(*kept)
