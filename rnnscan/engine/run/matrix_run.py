"""Run a window of steps with matrix states, stage by stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.loops.matrix_groups import Group
from rnnscan.engine.loops.matrix_parts import Parts
from rnnscan.engine.plan.matrix_stages import Stages
from rnnscan.ir.program import Atom, Equation, Value, evaluate, inputs_of, read


# (step, constants, carry, xs, length) -> (carry, ys): a scan with derivatives.
Scan = Callable[[FlatStep, list[Any], list[Any], list[Any], int], tuple[list[Any], list[Any]]]


@dataclass
class Window:
    """A window of steps.

    Attributes:
        stages: the stages of the step.
        length: the number of steps.
        reverse: from the last step to the first.
        chunk: the steps of a chunk, a power of two.
        rounds: whether to run recurrences in a logarithmic number of rounds.
        scan: runs the other parts of the carry.
        labels: the names to emit, by value.
    """

    stages: Stages
    length: int
    reverse: bool
    chunk: int
    rounds: bool
    scan: Scan
    labels: Mapping[Value, str]
    _fixed: dict[Value, Any] = field(default_factory=dict)
    _stacks: dict[Value, Any] = field(default_factory=dict)

    def run(self, constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The final carry and the stacked y."""
        step = self.stages.step
        self._fixed = dict(zip(step.constants, constants, strict=True))
        evaluate(self.stages.invariant, self._fixed)
        self._fixed = {value: self._labelled(value, array) for value, array in self._fixed.items()}
        self._stacks = dict(zip(step.x, xs, strict=True))
        final = dict(enumerate(carry))
        for stage in self.stages.stages:
            self._run_batched(stage.batched)
            if stage.loop is not None:
                final.update(
                    zip(stage.leaves, self._run_loop(stage.loop, [carry[i] for i in stage.leaves]), strict=True)
                )
            for group in stage.groups:
                final.update(self._run_group(group, [carry[state.index] for state in group.states]))
        return [final[index] for index in range(len(carry))], [self._stacked(atom) for atom in step.y]

    def _run_batched(self, equations: Sequence[Equation]) -> None:
        outputs = [output for equation in equations for output in equation.outputs]

        def run(values: dict[Value, Any]) -> list[Any]:
            for equation in equations:
                evaluate([equation], values)
                values.update((output, self._labelled(output, values[output])) for output in equation.outputs)
            return [values[output] for output in outputs]

        self._stacks.update(zip(outputs, self._at_every_step(run, inputs_of(equations)), strict=True))

    def _at_every_step(self, function: Callable[[dict[Value, Any]], Any], reads: Sequence[Value]) -> Any:
        """A function of the values of one step, batched over all steps."""
        stacked = [value for value in dict.fromkeys(reads) if value in self._stacks]

        def at_step(arrays: list[Any]) -> Any:
            return function({**self._fixed, **dict(zip(stacked, arrays, strict=True))})

        arrays = [self._stacks[value] for value in stacked]
        return jax.vmap(at_step, axis_size=self.length)(arrays)

    def _run_loop(self, loop: FlatStep, carry: list[Any]) -> list[Any]:
        constants = [self._fixed[value] for value in loop.constants]
        final, before = self.scan(loop, constants, carry, [self._stacks[value] for value in loop.x], self.length)
        self._stacks.update(zip(loop.carry, before, strict=True))
        return final

    def _run_group(self, group: Group, starts: list[Any]) -> dict[int, Any]:
        every = [Parts.of(state) for state in group.states]

        def at_step(values: dict[Value, Any]) -> list[Any]:
            return [parts.at_step(values) for parts in every]

        stacks = self._at_every_step(at_step, [*group.needs])
        matrices = [[matrix.make(self._fixed) for matrix in parts.matrices] for parts in every]
        if self.reverse:
            stacks = jax.tree.map(lambda leaf: jnp.flip(leaf, 0), stacks)
        results = group.run(stacks, matrices, starts, self.chunk, rounds=self.rounds)
        for state, (reads, _) in zip(group.states, results, strict=True):
            for matrix_read, total in zip(state.reads, reads, strict=True):
                total = jnp.flip(total, 0) if self.reverse else total
                self._stacks[matrix_read.result] = self._labelled(matrix_read.result, matrix_read.finish(total))
        return {state.index: last for state, (_, last) in zip(group.states, results, strict=True)}

    def _stacked(self, atom: Atom) -> Any:
        if isinstance(atom, Value) and atom in self._stacks:
            return self._stacks[atom]
        array = jnp.asarray(read(atom, self._fixed))
        return jnp.broadcast_to(array, (self.length, *array.shape))

    def _labelled(self, value: Value, array: Any) -> Any:
        return checkpoint_name(array, self.labels[value]) if value in self.labels else array
