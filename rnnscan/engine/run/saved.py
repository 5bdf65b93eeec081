"""The arrays that stay in memory between the passes of a scan."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import jax

from rnnscan.engine.loops.batched_values import Source, StackPart, of_neighbors, of_stack
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive.scan import Scan
from rnnscan.ir.leaves import split_list


# Constant -> the one that it is a copy of, and how it is copied.
Copies: TypeAlias = Mapping[int, tuple[int, Any]]


@dataclass(frozen=True)
class Reads:
    """What is read from a saved array.

    Attributes:
        operands: the places of these operands of a step. The number of steps that run is none.
        steps: the length of the array, if it is a stack; None: it is none.
    """

    operands: list[int]
    steps: int | None = None


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
    def reads(residuals: ResidualPlan, scan: Scan, xs: int) -> "Saved":
        """In place of each saved array of a scan with so many inputs, a `Reads`.

        The operands of the vjp of a step are the constants, the carry, x, the kept values and the new carry leaves.
        """
        sizes = [scan.constants, scan.carry, xs, len(residuals.kept), len(residuals.restored)]
        constants, carry, x, kept, new = split_list([[place] for place in range(sum(sizes))], sizes)[:-1]
        restored = dict(zip(residuals.restored, new, strict=True))
        both = [[*before, *restored.get(leaf, [])] for leaf, before in enumerate(carry)]
        repeated = {y: list[int]() for y in residuals.repeated_ys}
        for leaf, y in residuals.repeats.items():
            repeated[y] += both[leaf]
        steps = scan.length
        return Saved(
            constants=[Reads(places) for places in constants],
            initial=[Reads(places) for places in carry],
            carries={leaf: Reads(both[leaf], steps) for leaf in residuals.every_step},
            final={leaf: Reads(restored[leaf]) for leaf in residuals.final},
            repeated={y: Reads(places, steps) for y, places in repeated.items()},
            starts={leaf: Reads(carry[leaf], steps // residuals.chunk) for leaf in residuals.chunk_starts},
            xs=[Reads(places, steps) for places in x],
            kept=[Reads(places, steps) for places in kept],
            count=Reads([]) if scan.is_counted else None,
        )

    def stored(self, residuals: ResidualPlan, copies: Copies) -> "Saved":
        """What is stored: None for copies of constants, and for leaves that stacks of carries begin with."""
        constants = [None if index in copies else leaf for index, leaf in enumerate(self.constants)]
        initial = [None if index in residuals.begins else leaf for index, leaf in enumerate(self.initial)]
        return replace(self, constants=constants, initial=initial)

    def restored(self, scan: Scan, copies: Copies) -> "Saved":
        """The whole, from what is stored."""
        copied = {index: copy.of(self.constants[of]) for index, (of, copy) in copies.items()}
        constants = [copied.get(index, leaf) for index, leaf in enumerate(self.constants)]
        stacks, first = self.carries | self.starts, -1 if scan.reverse else 0
        initial = [stacks[index][first] if leaf is None else leaf for index, leaf in enumerate(self.initial)]
        return replace(self, constants=constants, initial=initial)

    def sources(
        self, residuals: ResidualPlan, *, reverse: bool
    ) -> tuple[dict[int, Source], list[Source], list[Source]]:
        """Where the backward pass has the values of a step from.

        Args:
            residuals: what the scan keeps.
            reverse: whether the scan runs from the last step to the first.

        Returns:
            The carry leaves before the step, by number, without those to recompute; the inputs and the kept values; and
            the new carry leaves that are read.
        """
        before = {leaf: of_stack(stack) for leaf, stack in self.carries.items()}
        after = {leaf: of_neighbors(self.carries[leaf], last, to_end=not reverse) for leaf, last in self.final.items()}
        for leaf, y in residuals.repeats.items():
            before[leaf] = of_neighbors(self.repeated[y], self.initial[leaf], to_end=reverse)
            after[leaf] = of_stack(self.repeated[y])
        kept = [
            partial(_from_host, stack) if index in residuals.offloaded else of_stack(stack)
            for index, stack in enumerate(self.kept)
        ]
        return before, [*map(of_stack, self.xs), *kept], [after[leaf] for leaf in residuals.restored]


def to_host(leaves: Sequence[Any], which: Collection[int]) -> list[Any]:
    """The leaves, those at some positions in host memory."""
    return [_placed(leaf, jax.memory.Space.Host) if index in which else leaf for index, leaf in enumerate(leaves)]


def _from_host(stack: Any, first: Any, steps: int) -> Any:
    return _placed(StackPart(stack, first, steps).copied(), jax.memory.Space.Device)


def _placed(leaf: Any, space: Any) -> Any:
    return jax.device_put(leaf, space)
