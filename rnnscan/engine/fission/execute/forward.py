"""The forward pass: chunk by chunk, the work that waits for no loop at once, each loop with the smallest body."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from rnnscan.engine.fission.analysis.components import Components
from rnnscan.engine.fission.analysis.linear import follows_linearly
from rnnscan.engine.fission.analysis.split import Roles, Split, split
from rnnscan.engine.fission.execute.chunked_scan import Chunks
from rnnscan.engine.fission.execute.runner import Runner, invariant_values
from rnnscan.engine.fission.flat_step import FlatStep
from rnnscan.engine.fission.heuristics import StepBytes, heuristics, stays_whole, too_large_to_feed
from rnnscan.engine.fission.passes.products import join_products
from rnnscan.engine.fission.trace import Atom, Program, Value, values_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Saved:
    """What stays in memory between the passes.

    Attributes:
        constants: what the step closes over.
        initial: the carry before the first step.
        carries: carry leaf -> the carry before each step, `(T, ...)`.
        repeated: y leaf -> its stack, of those that are carry leaves too.
        starts: carry leaf -> the carry before each whole chunk, of those that follow from the others in between.
        xs: the inputs.
        kept: the named values that are kept, stacked.
    """

    constants: list[Any]
    initial: list[Any]
    carries: dict[int, Any]
    repeated: dict[int, Any]
    starts: dict[int, Any]
    xs: list[Any]
    kept: list[Any]


@dataclass(frozen=True)
class Plan:
    """How a scan over a step is run.

    Attributes:
        flat: the step.
        length: number of steps.
        reverse: from the last step to the first.
        unroll: of the loops, as in `lax.scan`.
        chosen_chunk: steps of a chunk; None: by the heuristics.
    """

    flat: FlatStep
    length: int
    reverse: bool
    unroll: int | bool
    chosen_chunk: int | None

    @cached_property
    def following(self) -> list[int]:
        """Carry leaves that are kept at the beginning of each chunk only.

        They follow from the others by linear recurrences, through work that is not large beside them: the additive
        attention around an LSTM would have to be computed once more to have its c again.
        """
        flat = self.flat
        equations = [equation for equation in flat.program.equations if not {*equation.outputs} <= {*flat.kept}]
        candidates = [index for index in range(flat.carry_size) if index not in flat.repeats]
        found = follows_linearly(equations, flat.carry, flat.new_carry, candidates=candidates)
        return [index for index in found if not self._costs_much([index])]

    def _costs_much(self, following: list[int]) -> bool:
        flat = self.flat
        carry, new_carry = [flat.carry[index] for index in following], [flat.new_carry[index] for index in following]
        known = [value for value in [*flat.carry, *flat.x, *values_of(flat.kept)] if value not in carry]
        roles = Roles(flat.constants, known, carry, new_carry)
        parts = split(flat.program, roles, pays=heuristics().pays, stays_whole=stays_whole)
        body = [equation for stage in parts.stages for equation in stage.body]
        return any(too_large_to_feed(leaf, body) for leaf in carry)

    @cached_property
    def chunk(self) -> int:
        """Steps of a chunk."""
        if self.chosen_chunk is not None:
            return max(1, min(self.length, self.chosen_chunk))
        return heuristics().chunk(self.length, self._step_bytes())

    def _step_bytes(self) -> StepBytes:
        flat = self.flat
        batched = [output for equation in with_known_carries(flat).batched for output in equation.outputs]
        given, starts = _bytes([*flat.carry, *flat.x]), _bytes([flat.carry[index] for index in self.following])
        return StepBytes(
            # What pays to batch, its cotangents, the carry, and x.
            made=2 * _bytes(batched) + given,
            given=given,
            kept=given - starts + _bytes(values_of(flat.kept)),
            starts=starts,
        )

    @property
    def chunks(self) -> Chunks:
        """The chunks of the sequence."""
        return Chunks(self.length, self.chunk, from_end=self.reverse)

    def split(self, stacked: Sequence[Atom]) -> Split:
        """The step as it is written, split, with these values wanted for every step."""
        return self._split(self.flat.program, stacked)

    def split_to_run(self, stacked: Sequence[Atom]) -> Split:
        """The same with its products in the form that is quickest."""
        flat = self.flat
        return self._split(join_products(flat.program, flat.constants, flat.carry, flat.new_carry), stacked)

    def _split(self, program: Program, stacked: Sequence[Atom]) -> Split:
        flat, equations = self.flat, program.equations
        loops = Components(equations, flat.carry, flat.new_carry).loops(equations)
        roles = Roles(flat.constants, flat.x, flat.carry, flat.new_carry, stacked=stacked)
        return split(program, roles, pays=heuristics().pays_forward(loops), stays_whole=stays_whole)


def run_forward(
    plan: Plan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The final carry and ys."""
    final, ys, _ = _run(plan, constants, carry, xs, list(plan.flat.y), [])
    return final, ys


def run_and_save(
    plan: Plan, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any], Saved]:
    """The final carry, ys, and what the backward pass needs."""
    flat = plan.flat
    stacked = [index for index in range(flat.carry_size) if index not in {*flat.repeats, *plan.following}]
    wanted = [*flat.y, *flat.kept, *(flat.carry[index] for index in stacked)]
    final, made, starts = _run(plan, constants, carry, xs, wanted, plan.following)
    ys, kept, carries = (
        made[: flat.y_size],
        made[flat.y_size : len(made) - len(stacked)],
        made[len(made) - len(stacked) :],
    )
    saved = Saved(
        constants=list(constants),
        initial=list(carry),
        carries=dict(zip(stacked, carries, strict=True)),
        repeated={index: ys[index] for index in flat.repeated_ys},
        starts=dict(zip(plan.following, starts, strict=True)),
        xs=list(xs),
        kept=kept,
    )
    return final, ys, saved


def _run(
    plan: Plan, constants: Any, carry: Any, xs: Any, wanted: Sequence[Atom], starting: Sequence[int]
) -> tuple[list[Any], list[Any], list[Any]]:
    parts = plan.split_to_run(wanted)
    runner = Runner(parts, invariant_values([parts], constants), reverse=plan.reverse, unroll=plan.unroll)

    def run_chunk(carry: list[Any], xs: list[Any], _: Any, steps: int) -> tuple[list[Any], list[Any], list[Any]]:
        known: dict[Value, Any] = dict(zip(plan.flat.x, xs, strict=True))
        new_carry, _, chunk = runner(steps, known, carry)
        return new_carry, [chunk.stacked(atom) for atom in wanted], [carry[index] for index in starting]

    if not starting and not parts.at_once and len(parts.stages) == 1:
        return run_chunk(list(carry), list(xs), [], plan.length)
    return plan.chunks.run(run_chunk, list(carry), list(xs), [], [], back=False)


def with_known_carries(flat: FlatStep) -> Split:
    """The step, split as the backward pass computes it again: every carry is known."""
    roles = Roles(flat.constants, [*flat.carry, *flat.x], [], [], stacked=[*flat.new_carry, *flat.y])
    return split(flat.program, roles, pays=heuristics().pays, stays_whole=stays_whole)


def _bytes(values: Iterable[Value]) -> int:
    return sum(value.nbytes for value in values)
