"""Run the stages of a split over a chunk of steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jax import lax

from rnnscan.engine.chunk import Chunk
from rnnscan.engine.heuristics import heuristics
from rnnscan.engine.linear import associative_scan, is_linear
from rnnscan.engine.split import Split, Stage
from rnnscan.engine.trace import Atom, Constant, Equation, Value


@dataclass(frozen=True)
class Runner:
    """Runs a split over chunks.

    Attributes:
        split: the split.
        invariant: the values that are the same at every step, by `invariant_values`.
        reverse: from the last step of a chunk to the first.
        unroll: of the loops, as in `lax.scan`.
    """

    split: Split
    invariant: Mapping[Value, Any]
    reverse: bool
    unroll: int | bool

    def __call__(
        self, steps: int, known: Mapping[Value, Any], carry: Sequence[Any], sums: Sequence[Any] = ()
    ) -> tuple[list[Any], list[Any], Chunk]:
        """Run a chunk.

        Args:
            steps: its steps.
            known: values of each step, stacked: those in `Roles.known`, and what else is known already.
            carry: the carry before the first step to run.
            sums: what the sums over steps are added to.

        Returns:
            The carry after the last step, the sums, and the chunk, which has what is stacked.
        """
        split = self.split
        looped = [value for stage in split.stages for value in self._made(stage)]
        without_loop = {equation for stage in split.stages if self._is_associative(stage) for equation in stage.body}
        at_once = without_loop.union(split.at_once)
        chunk = Chunk(steps, self.invariant, known, looped, [e for e in split.varying if e in at_once])
        new_carry, new_sums = list(carry), list(sums)
        for stage in split.stages:
            if self._is_associative(stage):
                self._run_associatively(stage, chunk, new_carry)
            else:
                self._run_loop(stage, chunk, new_carry, new_sums)
        for position, atom in enumerate(split.roles.summed):
            if position not in split.accumulated:
                new_sums[position] = new_sums[position] + chunk.sum(atom)
        return new_carry, new_sums, chunk

    def _run_loop(self, stage: Stage, chunk: Chunk, carry: list[Any], sums: list[Any]) -> None:
        (its_carry, its_sums), from_body = lax.scan(
            partial(self._step, stage),
            ([carry[position] for position in stage.carry], [sums[position] for position in stage.accumulated]),
            [chunk.stacked(value) for value in stage.to_body],
            length=chunk.steps,
            reverse=self.reverse,
            unroll=self.unroll,
        )
        for position, leaf in zip(stage.carry, its_carry, strict=True):
            carry[position] = leaf
        for position, total in zip(stage.accumulated, its_sums, strict=True):
            sums[position] = total
        chunk.add(dict(zip(stage.from_body, from_body, strict=True)))

    def _run_associatively(self, stage: Stage, chunk: Chunk, carry: list[Any]) -> None:
        (position,) = stage.carry
        leaf, new_leaf = self.split.roles.carry[position], self.split.roles.new_carry[position]
        assert stage.loop is not None
        before, carry[position] = associative_scan(
            stage.loop, leaf, new_leaf, chunk, carry[position], reverse=self.reverse
        )
        chunk.add({leaf: before})

    def _made(self, stage: Stage) -> Sequence[Value]:
        """What a stage brings to the chunk."""
        return [self.split.roles.carry[stage.carry[0]]] if self._is_associative(stage) else stage.from_body

    def _is_associative(self, stage: Stage) -> bool:
        if heuristics().linear == "loop" or stage.loop is None or len(stage.carry) != 1 or stage.accumulated:
            return False
        roles, position = self.split.roles, stage.carry[0]
        same_dtype = all(output.dtype == roles.carry[position].dtype for e in stage.loop for output in e.outputs)
        return same_dtype and is_linear(stage.loop, roles.carry[position], roles.new_carry[position])

    def _step(self, stage: Stage, state: tuple[list[Any], list[Any]], given: Sequence[Any]) -> Any:
        carry, sums = state
        roles = self.split.roles
        values = {
            **self.invariant,
            **dict(zip((roles.carry[position] for position in stage.carry), carry, strict=True)),
            **dict(zip(stage.to_body, given, strict=True)),
        }
        evaluate(stage.body, values)
        new_carry = [read(roles.new_carry[position], values) for position in stage.carry]
        new_sums = [
            total + read(roles.summed[position], values)
            for position, total in zip(stage.accumulated, sums, strict=True)
        ]
        return (new_carry, new_sums), [values[value] for value in stage.from_body]


def invariant_values(splits: Sequence[Split], constants: Sequence[Any]) -> dict[Value, Any]:
    """What splits of the same program compute once, from what is the same at every step."""
    values = dict(zip(splits[0].roles.invariant, constants, strict=True))
    for split in splits:
        evaluate([equation for equation in split.invariant if equation.outputs[0] not in values], values)
    return values


def evaluate(equations: Sequence[Equation], values: dict[Value, Any]) -> None:
    """Run equations in order, from the values that are there to those that they make."""
    for equation in equations:
        results = equation.evaluate(*(read(atom, values) for atom in equation.inputs))
        values.update(zip(equation.outputs, results, strict=True))


def read(atom: Atom, values: Mapping[Value, Any]) -> Any:
    """The value of an atom."""
    return atom.value if isinstance(atom, Constant) else values[atom]
