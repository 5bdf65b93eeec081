"""plan(): a memory choice that fits a budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Literal

import jax
import jax.numpy as jnp

from rnnscan import _checks as checks
from rnnscan._byte_sizes import budget_bytes, readable_bytes
from rnnscan._messages import is_array_like, is_count
from rnnscan.insight.arguments import Arguments
from rnnscan.insight.candidates import Candidate, candidates_of
from rnnscan.insight.memory_prediction import host_is_device
from rnnscan.insight.one_device import local_shapes, without_mesh
from rnnscan.insight.training_step import TrainingStep
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.calls import takes_nets
from rnnscan.protocols import Cell


# Gradients of the parameters alone took up to 1.1 % more than those of all arguments, in other programs of one scan.
_SLACK = 50
# A prediction was at most 1.3 times XLA's figure for nearly all choices, and mostly 0.75 to 1.1 times.
_SURELY_TOO_LARGE = 1.3
_LIKELY_FITS = 0.9
# Choices with the smallest predictions that are compiled before a budget is refused.
_SMALLEST = 3


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
    step = TrainingStep(cell, params, carry, xs, options=options, last_only=last_only)
    choices = _choices(cell, params, carry, xs, options)
    fitting = (choice for choice in _likely(step, choices, allowed) if _fits(step, choice.memory, allowed))
    if measure:
        found = list(fitting)
        chosen = found[step.fastest([choice.memory for choice in found])] if found else None
    else:
        chosen = next(fitting, None)
    if chosen is None:
        chosen = _least_of_all(step, choices, budget, allowed)
    return PlannedMemory(
        **vars(chosen.memory),
        temporary_bytes=_needed(step, chosen.memory) or 0,
        relative_cost=chosen.cost / choices[0].cost if choices[0].cost else 1.0,
    )


def fit(memory: MemoryBudget, cell: Any, params: Any, carry: Any, xs: Any, options: Mapping[str, Any]) -> Memory:
    """The choice for a budget that a scan was given, whose arguments may be traced."""
    given = {"params": params, "carry": carry, "xs": xs, **options}
    local = jax.tree.map(_as_shape, local_shapes(given))
    shapes = jax.tree.map(_as_shape, given)
    with without_mesh():
        chosen = local if local != shapes and _runs(cell, **local) else shapes
        return plan(cell, **chosen, budget=memory.budget, last_only=memory.last_only).choice


def _runs(cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> bool:
    """Whether the shapes of one device fit together, as they do where rows are sharded and parameters are not."""
    given = Arguments(cell, params, carry, xs, options)
    try:
        given.eval_shape(lambda *arrays: given.run(arrays))
    except (TypeError, ValueError):
        return False
    return True


def _choices(cell: Any, params: Any, carry: Any, xs: Any, options: Mapping[str, Any]) -> list[Candidate]:
    length = checks.sequence_length(xs, options.get("length"))
    if not is_count(length, least=0):
        raise ValueError(
            f"plan: the number of steps must be known when the program is traced; got {length}. Give a `Memory` "
            "without segments where time is a symbolic dimension of jax.export."
        )
    found: list[Candidate] = []
    given = Arguments(cell, params, carry, xs, options)

    def look(*arrays: Any) -> None:
        steps = [(run.cell, run.params, call.carry, _one_step(run.xs)) for run, call in given.calls(arrays)]
        engine = options.get("engine", "auto")
        found.extend(candidates_of(steps, int(length), engine=engine, can_offload=not host_is_device()))

    given.eval_shape(look)
    return found


def _one_step(xs: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)


def _promising(step: TrainingStep, choices: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """In the order of cost, and those of one cost together, what is predicted to need less than all that is cheaper."""
    least = float("inf")
    for _, of_one_cost in groupby(choices, key=lambda choice: choice.cost):
        smaller = [choice for choice in of_one_cost if step.predicted_bytes(choice.memory) < least]
        if smaller:
            yield smaller
            least = min(step.predicted_bytes(choice.memory) for choice in smaller)


def _likely(step: TrainingStep, choices: Sequence[Candidate], allowed: int) -> Iterator[Candidate]:
    """The choices that may fit, in the order of cost, and of one cost the likely ones first."""

    def doubt(choice: Candidate) -> int:
        predicted = step.predicted_bytes(choice.memory)
        return 0 if predicted <= _LIKELY_FITS * allowed else predicted

    for of_one_cost in _promising(step, choices):
        yield from (one for one in sorted(of_one_cost, key=doubt) if doubt(one) <= _SURELY_TOO_LARGE * allowed)


def _fits(step: TrainingStep, memory: Memory, allowed: int) -> bool:
    needed = _needed(step, memory)
    return needed is not None and needed <= allowed


def _needed(step: TrainingStep, memory: Memory) -> int | None:
    needed = step.temporary_bytes(memory)
    return None if needed is None else needed + needed // _SLACK


def _least_of_all(step: TrainingStep, choices: Sequence[Candidate], budget: Any, allowed: int) -> Candidate:
    """Of the choices with the smallest predictions the one that needs least, for predictions that were too large.

    Raises:
        ValueError: if it does not fit either.
    """
    promising = sorted(chain.from_iterable(_promising(step, choices)), key=lambda one: step.predicted_bytes(one.memory))
    needs = [(needed, one) for one in promising[:_SMALLEST] if (needed := _needed(step, one.memory)) is not None]
    if not needs:
        raise ValueError(
            "plan: XLA must have an analysis of memory to plan by; this backend has none. Choose a `Memory` yourself."
        )
    least, chosen = min(needs, key=lambda pair: pair[0])
    if least > allowed:
        raise ValueError(
            f"plan: nothing fits {budget!r}, {readable_bytes(allowed)}; the least that was found is "
            f"{readable_bytes(least)}, {least} bytes, by {chosen.memory!r}. Give that, or run fewer rows or steps at "
            "once."
        )
    return chosen


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)


def _as_shape(leaf: Any) -> Any:
    if isinstance(leaf, bool | int | float | complex | str) or not is_array_like(leaf):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
