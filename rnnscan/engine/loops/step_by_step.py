"""The steps of a loop, one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from jax import lax

from rnnscan._util.varying import vary_as
from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.engine.analysis.leaves import split_list
from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.time_loop import before_and_after


@dataclass(frozen=True, eq=False)
class CycleLoop:
    """The steps of a cycle, one by one.

    Attributes:
        cycle: the cycle.
        axes: for each value of `cycle.reads`, 0 if it is stacked over the steps, else None.
        steps: the number of steps.
        reverse: whether the steps run from the last to the first.
        unroll: as in `lax.scan`.
    """

    cycle: Cycle
    axes: tuple[int | None, ...]
    steps: int
    reverse: bool
    unroll: int | bool

    @classmethod
    def of(cls, cycle: Cycle, chunk: Chunk, *, reverse: bool, unroll: int | bool) -> Self:
        """The loop over the steps of a chunk."""
        axes = tuple(0 if chunk.varies(value) else None for value in cycle.reads)
        return cls(cycle, axes, chunk.steps, reverse, unroll)

    def __call__(self, *arguments: Any) -> list[Any]:
        """The leaves after each step, from those before the first and the values of `cycle.reads`."""
        start, read_values = split_list(arguments, [len(self.cycle.leaves)])
        stacked = [value for value, axis in zip(read_values, self.axes, strict=True) if axis == 0]

        def step(carry: list[Any], step_values: list[Any]) -> tuple[list[Any], list[Any]]:
            taken = iter(step_values)
            whole = [next(taken) if axis == 0 else value for value, axis in zip(read_values, self.axes, strict=True)]
            new = self.cycle.step(carry, whole)
            return new, new

        scan = partial(lax.scan, step, length=self.steps, reverse=self.reverse, unroll=self.unroll)
        _, after = scan(vary_as(start, arguments), stacked)
        return list(after)


def run_unrolled(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool
) -> tuple[list[Any], list[Any]]:
    """Run the steps of a recurrence over a short chunk one by one, without a loop. See `Executor`.

    It is exact, so nothing has to be in reserve. On a GPU a loop in reserve makes the device wait for the host, which
    reads whether it runs: 0.1 ms for each chunk of an LSTM on an H100, a fifth of a training step (jax 0.11.2).
    """
    loop = CycleLoop.of(recurrence.cycle, chunk, reverse=reverse, unroll=True)
    after = loop(*start, *map(chunk.read, loop.cycle.reads))
    return before_and_after(after, start, reverse=reverse)
