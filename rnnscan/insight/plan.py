"""plan(): a memory choice that fits a budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._byte_sizes import budget_bytes
from rnnscan.insight.measure_losses import measure_losses
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.calls import run, takes_nets
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import choose
from rnnscan.planning.training_step import TrainingStep
from rnnscan.protocols import Cell


@dataclass(frozen=True, repr=False)
class PlannedMemory(Memory):
    """A memory choice that `plan` made, with what it expects of it.

    Attributes:
        temporary_bytes: what both passes need beside arguments and results, by XLA's memory analysis, and 2 % for what
            differs between two programs.
        relative_cost: operations of a training step, relative to keeping every name.
    """

    temporary_bytes: int = 0
    relative_cost: float = 1.0

    @property
    def choice(self) -> Memory:
        """The choice alone."""
        return Memory(self.recompute, self.offload, self.segment, self.chunk)


@takes_nets
def plan(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    budget: int | str,
    objective: Literal["time"] = "time",
    measure: bool = False,
    last_only: bool = False,
    **options: Any,
) -> PlannedMemory:
    """The fastest memory choice whose training step fits a budget.

    The budget is for what a training step needs at once beside its arguments and results: what is kept between the
    passes, and what either pass makes for itself. The step is the gradient, in parameters, carry and inputs, of a loss
    that reads every output nonlinearly, such as a squared error, so that the outputs and their cotangents count. With
    `last_only=True` the loss reads the last carry alone. What the loss makes beside that, such as logits, is not in it.

    Choices of names, of segments, nested ones and schedules among them, of chunks, and of offloading where the device
    has a memory of its own, are put in order of their cost, which is counted in operations. A choice that is predicted
    to need no less than a cheaper one is left out. The others are compiled in that order until one fits by XLA's memory
    analysis, except where the prediction is far above the budget. Order and predictions do not depend on the budget, so
    a larger one never gives a plan of a higher cost.

    `Memory.fit(budget)` as the `memory` of `scan` plans in place. A net takes the place of a cell as
    `plan(net, params, xs, carry=None, budget=budget)`; the budget and the choice are those of the whole net.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`, or a net.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: a carry, of the same.
        xs: inputs `(T, ...)`, of the same; or None, with `length` among the options.
        budget: a number of bytes, or a string such as "512MiB" or "2GB".
        objective: "time", the only one there is.
        measure: whether to run all choices that fit, and take the fastest. It needs arrays and takes longer.
        last_only: whether the loss depends on the last carry alone, so that outputs need not be kept.
        options: other arguments of `scan`, or of the net: `seq_lengths`, `mask`, `reset`, `reset_to`, `engine`, `key`.

    Returns:
        A `Memory`, which also says what it expects: its temporary bytes and its cost.

    Raises:
        ValueError: if the budget is no size, or nothing fits; the message says the least that would.
        TypeError: as `scan` does.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.LSTM(32), jnp.ones((64, 4, 16))
        >>> params = cell.init(jax.random.key(0), input_size=16)
        >>> memory = rs.plan(cell, params, cell.initial_carry(xs[0]), xs, budget="1MiB")
        >>> memory.temporary_bytes <= 2**20
        True
        >>> carry, ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)
    """
    allowed = budget_bytes(budget)
    if objective != "time":
        raise ValueError(f'plan: `objective` must be "time"; got {objective!r}.')
    xs, carry = (jax.tree.map(_as_array, tree) for tree in (xs, carry))
    given = Arguments(run, cell, params, carry, xs, options)
    chosen = choose(given, MemoryBudget(allowed, last_only), fastest=_fastest if measure else None)
    return PlannedMemory(
        **vars(chosen.memory), temporary_bytes=chosen.temporary_bytes, relative_cost=chosen.relative_cost
    )


def _fastest(step: TrainingStep, choices: Sequence[Memory]) -> int:
    """The number of the choice that takes the least time; it needs arrays."""
    rows = measure_losses(step.build, {str(number): memory for number, memory in enumerate(choices)})
    return int(np.argmin([row.relative_time for row in rows]))


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)
