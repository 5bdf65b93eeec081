"""The steps of a recurrence, one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from jax import lax

from rnnscan._util.varying import vary_as
from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.indexing import shifted
from rnnscan.ir.leaves import split_list


@dataclass(frozen=True, eq=False)
class CycleLoop:
    """A recurrence over the steps of a chunk. As a function it runs them one by one.

    Attributes:
        recurrence: the recurrence.
        chunk: the values that it reads.
        reverse: whether the steps run from the last to the first.
        unroll: as in `lax.scan`.
    """

    recurrence: Recurrence
    chunk: Chunk
    reverse: bool
    unroll: int | bool

    @property
    def cycle(self) -> Cycle:
        """The cycle of the recurrence."""
        return self.recurrence.cycle

    @cached_property
    def axes(self) -> tuple[int | None, ...]:
        """For each value of `cycle.reads`, 0 if it is stacked over the steps, else None."""
        return tuple(0 if self.chunk.varies(value) else None for value in self.cycle.reads)

    def read_values(self) -> list[Any]:
        """The values of `cycle.reads`."""
        return [*map(self.chunk.read, self.cycle.reads)]

    def __call__(self, *arguments: Any) -> list[Any]:
        """The leaves after each step, from those before the first and the values of `cycle.reads`."""
        start, read_values = split_list(arguments, [len(self.cycle.leaves)])
        stacked = [value for value, axis in zip(read_values, self.axes, strict=True) if axis == 0]

        def step(carry: list[Any], step_values: list[Any]) -> tuple[list[Any], list[Any]]:
            taken = iter(step_values)
            whole = [next(taken) if axis == 0 else value for value, axis in zip(read_values, self.axes, strict=True)]
            new = self.cycle.step(carry, whole)
            return new, new

        scan = partial(lax.scan, step, length=self.chunk.steps, reverse=self.reverse, unroll=self.unroll)
        _, after = scan(vary_as(start, arguments), stacked)
        return list(after)

    def run_unrolled(self, start: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Run the steps of a short chunk one by one, without a loop. See `Executor`.

        It is exact, so nothing has to be in reserve. On a GPU a loop in reserve makes the device wait for the host,
        which reads whether it runs: 0.1 ms for each chunk of an LSTM on an H100, a fifth of a training step (jax
        0.11.2).
        """
        after = replace(self, unroll=True)(*start, *self.read_values())
        return self.before_and_last(after, start)

    def before_and_last(self, after: Sequence[Any], start: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The leaves before each step, and after the last one to run, from those after each and before the first."""
        before = [shifted(leaf, first, to_start=self.reverse) for leaf, first in zip(after, start, strict=True)]
        return before, [leaf[0 if self.reverse else -1] for leaf in after]
