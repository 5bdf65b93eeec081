"""The plan of a call: all decisions, before it runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax

from rnnscan._util.messages import is_count
from rnnscan._util.step_wrappers import type_of_step
from rnnscan.engine.analysis.axis_order import AxisOrder, long_axes_last
from rnnscan.engine.analysis.cycle import cycles_of
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.recurrence import Recurrence, check_loops
from rnnscan.engine.call.prepare import Call
from rnnscan.engine.call.route import Route, route
from rnnscan.engine.costs.heuristics import Heuristics, Whole, chosen, for_platform, heuristics
from rnnscan.engine.costs.platform import default_platform
from rnnscan.engine.loops.sharded_rows import sharded_rows
from rnnscan.engine.one_kernel.fits import OneKernel
from rnnscan.engine.one_kernel.small_step import residuals_of, small_loop
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive.scan import Scan, ScanOptions, Windows
from rnnscan.engine.units.mesh import unit_axis
from rnnscan.engine.units.shard_units import UnitCell
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Equation, Value, nominal_size, total_bytes
from rnnscan.ir.trace import has_checkpoint
from rnnscan.memory import Memory, kept_names


@dataclass(frozen=True)
class NewtonLoop:
    """A loop that Newton's method solves.

    Attributes:
        carry: the positions of its leaves in the carry.
        recurrence: how it is solved.
        chunk: the steps that are solved at once.
    """

    carry: tuple[int, ...]
    recurrence: Recurrence
    chunk: int


@dataclass(frozen=True)
class ExecutionPlan:
    """How a call runs. `rnnscan.engine.run.execute` runs it; the reports of `rnnscan.insight` describe it.

    Attributes:
        call: the call.
        route: its engine.
        choices: the heuristics of the platform that it is for.
        recomputes: whether the backward pass runs steps again under every memory choice.
        follows_platform: whether a program for another platform has the choices of that one.
    """

    call: Call
    route: Route
    choices: Heuristics
    recomputes: bool = False
    follows_platform: bool = False

    @staticmethod
    def of(call: Call, *, recomputes: bool = False) -> "ExecutionPlan":
        """Plan a call."""
        arguments = (call.params, call.carry, call.xs)
        plan = ExecutionPlan(call, route(call), heuristics(arguments), recomputes, chosen(arguments) is None)
        if call.parallel is not None:
            places = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(call.carry)]
            check_loops(plan.step, [places[index] for index in plan.step.changing], call.parallel)
        return plan

    @property
    def reason(self) -> str:
        """Why the engine is not the fission engine, or how that runs the step; empty if it splits the step."""
        if self.choices.whole and self.whole:
            return "on a TPU this step runs whole in one loop"
        return "the loop is small, and one kernel" if self.kernel is not None else self.route.reason

    @cached_property
    def whole(self) -> Whole | None:
        """What is batched where the platform runs the step whole; None: the step is split on every platform."""
        call = self.call
        free = self.route.engine == "fission" and call.engine == "auto" and call.parallel is None
        # A step that runs whole joins the gates of a unit cell, whose units lie on several devices.
        if not free or self.states.state_chunk is not None or self._is_on_mesh or not _runs_whole(self.step):
            return None
        # The products of a segment's inputs lie in memory while the segment runs.
        return "nothing" if self.memory is None or self.memory.segment is None else "inputs"

    @property
    def kernel(self) -> OneKernel | None:
        """The loop as one kernel; None: on this platform it is none."""
        return self._small.kernel if self._small is not None and self.choices.one_kernel else None

    @cached_property
    def _small(self) -> "_SmallLoop | None":
        """The loop as one kernel of a CPU; None if it is none."""
        call, memory, choices = self.call, self.call.memory, self.choices
        free = self.route.engine == "fission" and call.engine == "auto" and call.parallel is None
        if not free or self.recomputes or memory is None or self._is_on_mesh:
            return None
        if memory.recompute not in ((), "all") or memory.offload or memory.chunk is not None:
            return None
        if has_checkpoint(call.info.traced.jaxpr) or self.states.state_chunk is not None:
            return None  # A checkpoint is the user's choice.
        if self.follows_platform:
            choices = for_platform("cpu")
        kernel = small_loop(call.flat.program, 0, choices)
        if kernel is None or (memory.recompute == "all" and not kernel.calls):
            return None
        residuals = residuals_of(call.flat.program, call.length, memory)
        if not kernel.gains(residuals, choices):
            return None
        return _SmallLoop(kernel, residuals, residuals <= choices.small_residuals)

    @property
    def _is_on_mesh(self) -> bool:
        """Whether the rows, or the units, lie on several devices."""
        types = [*jax.tree.leaves(self.call.carry), *map(type_of_step, jax.tree.leaves(self.call.xs))]
        return isinstance(self.call.cell, UnitCell) or sharded_rows(types, self.constants) is not None

    @property
    def memory(self) -> Memory | None:
        """The memory choice in force.

        Side effects must happen once, so cells with them get plain autodiff. Effects of debug prints and of derivative
        rules may happen again where the caller asks to recompute.
        """
        call = self.call
        if not self.route.checkpoints or call.info.has_side_effects:
            return None
        asks = self.recomputes or (call.memory is not None and call.memory.asks_to_recompute)
        has_effects = call.info.effects or any(call.effects_of_rules)
        return None if not asks and (has_effects or self._keeps_all) else call.memory

    @cached_property
    def _keeps_all(self) -> bool:
        """Whether a plain loop has so small residuals that it keeps them all, as a small loop does."""
        call = self.call
        free = self.route.engine == "lax" and call.engine == "auto" and is_count(call.length, least=0)
        if not free or call.memory is None:
            return False
        residuals = residuals_of(call.flat.program, call.length, call.memory)
        return call.memory.recompute == () and residuals <= self.choices.small_residuals

    @property
    def kept_names(self) -> frozenset[str]:
        """The names whose values are kept between the passes."""
        return frozenset() if self.memory is None else kept_names(self.memory, self.call.names)

    @cached_property
    def step(self) -> FlatStep:
        """The step as a program whose outputs include the named values to keep."""
        # With the lax engine `jax.checkpoint` runs around the step, whose policy replaces those within.
        fission = self.route.engine == "fission"
        policies = fission and self.memory is not None and self.memory.recompute != "all"
        return self.call.flat.keeping(self.kept_names, self.call.names, policies=policies)

    @property
    def constants(self) -> list[Any]:
        """The arrays that the step closes over, then the carry leaves that it does not change."""
        leaves = jax.tree.leaves(self.call.carry)
        return [*self.call.traced.consts, *(leaves[index] for index in self.step.unchanged)]

    @cached_property
    def states(self) -> ScanPlan:
        """How the matrix states of the step run."""
        return self.scan_of(self.step, self.call.length, windows=self._windows)

    @property
    def _windows(self) -> Windows | None:
        memory, call = self.memory, self.call
        if memory is None or self.route.engine != "fission":
            return None
        scans = memory.sub_scans(call.length)
        longest = max(sub_scan.segment[-1] if sub_scan.segment else sub_scan.steps for sub_scan in scans)
        return Windows(min(longest, call.length), in_segments=memory.segment is not None)

    def scan(self, length: int) -> ScanPlan:
        """The fission engine's plan for a scan, or a segment of it, of this length."""
        return self.scan_to_run(length).for_derivatives

    def scan_to_run(self, length: int) -> ScanPlan:
        """`scan`, before values are chosen that only a derivative needs. See `ScanPlan.for_derivatives`."""
        step, chooses, small = self.ordered.step.keeping_parts(), self._leaves_the_choice, self._small
        windows = None if self.states.state_chunk is None else self.states.scan.options.windows
        others = {"residuals": small.residuals if small else None, "whole": self.whole, "windows": windows}
        return replace(self.scan_of(step, length, chooses_kept_values=chooses, **others), kernel=self.kernel)

    @cached_property
    def ordered(self) -> AxisOrder:
        """The step with the leaves of its carry in the order of axes in which the fission engine carries them."""
        as_written = AxisOrder(self.step)
        free = self.route.engine == "fission" and self.call.parallel is None and self.states.state_chunk is None
        free = free and self._small is None
        if not free or not self.choices.long_axes_last:
            return as_written
        order = long_axes_last(self.step, self.choices.machine)
        return order if order.axes and not self._is_on_mesh else as_written

    @property
    def _leaves_the_choice(self) -> bool:
        """Whether the engine chooses the kept values of a step: the cell has no names, or all values may be kept."""
        memory, call, small = self.memory, self.call, self._small
        chooses = not (call.names.known or self.step.kept_labels)
        if small is not None:  # Computing a step again takes a kernel no longer than keeping much of it.
            chooses = small.may_keep_all
        free = memory is not None and memory.recompute == () and call.parallel is None
        return chooses and free and self.route.engine == "fission"

    def scan_of(self, step: FlatStep, length: int, **others: Any) -> ScanPlan:
        """The same for a step that is a part of the call's. `others` are options of `ScanOptions`."""
        call, memory = self.call, self.memory
        options = ScanOptions(
            unroll=call.unroll,
            chunk=None if memory is None else memory.chunk,
            platform=default_platform(),
            choices=None if self.follows_platform else self.choices,
            parallel=call.parallel,
            offload=() if memory is None else memory.offload,
            kept=step.kept_labels,
            units=unit_axis(),
            **others,
        )
        return ScanPlan(step, Scan(len(step.constants), len(step.carry), length, call.reverse, options), self.choices)

    @property
    def newton_loops(self) -> list[NewtonLoop]:
        """The loops that Newton's method solves, in running order."""
        if self.call.parallel is None:
            return []
        length, changing, states = self.call.length, self.step.changing, self.states.matrix_search
        scans: list[tuple[ScanPlan, Sequence[int]]] = [(self.scan(length), changing)]
        window = self.states.window(length)
        if window is not None and states.split is not None:
            scans = [
                (self.states.of_part(states.split.step_of(loop), window), [changing[index] for index in loop.carry])
                for loop in states.scans
            ]
        return [
            NewtonLoop(tuple(places[index] for index in loop.carry), loop.recurrence, scan.chunk)
            for scan, places in scans
            for loop in scan.forward().loops
            if loop.recurrence is not None and loop.recurrence.newton_solves
        ]


class _SmallLoop(NamedTuple):
    """A loop that is one kernel of a CPU.

    Attributes:
        kernel: the loop as one kernel.
        residuals: the bytes of all that its derivative reads.
        may_keep_all: whether they are so few that all may be kept.
    """

    kernel: OneKernel
    residuals: int
    may_keep_all: bool


def _runs_whole(step: FlatStep) -> bool:
    """Whether a step is mostly recurrent, and no sum over its steps is much cheaper if it is batched over time."""
    return _is_recurrent(step) and not _sums_outer_products(step)


def _is_recurrent(step: FlatStep) -> bool:
    """Whether most of the carry is in loops that are not linear."""
    equations = needed(step.program.equations, step.new_carry)
    cycles = (cycle for _, cycle in cycles_of(equations, step.carry, step.new_carry))
    recurrent = sum(total_bytes(cycle.leaves) for cycle in cycles if not cycle.is_linear(updates=True))
    return 2 * recurrent > total_bytes(step.carry)


def _sums_outer_products(step: FlatStep) -> bool:
    """Whether the gradient of a large array that all steps read is a sum of products of columns and rows.

    The outputs of an encoder are one, where an attention reads them. Batched over time, the sum is a product.
    """
    equations = step.program.equations
    fixed = step.program.fixed
    small = total_bytes([*step.carry, *step.x])
    return any(
        value in fixed and value.nbytes > small and _rows_beside(equation, value) == 1
        for equation in equations
        if contraction_of(equation) and not fixed.issuperset(equation.reads)
        for value in equation.reads
    )


def _rows_beside(product: Equation, operand: Value) -> int:
    """The rows of the other operand, over which the operand's gradient contracts."""
    side, contraction = 1 - product.inputs.index(operand), contraction_of(product)
    assert contraction is not None
    return nominal_size(product.inputs[side].shape[axis] for axis in contraction.free[side])
