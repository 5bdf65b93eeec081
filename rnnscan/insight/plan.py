"""plan(): a memory choice that fits a budget."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from rnnscan import checks
from rnnscan.budget import budget_bytes
from rnnscan.insight.candidates import Candidate, candidates
from rnnscan.insight.memory_prediction import host_is_device
from rnnscan.insight.tradeoff import readable_bytes
from rnnscan.insight.training_step import TrainingStep
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.messages import is_array_like, is_count


@dataclass(frozen=True, repr=False)
class PlannedMemory(Memory):
    """A memory choice that `plan` made, with what it expects of it.

    Attributes:
        temporary_bytes: what both passes need beside arguments and results, by XLA's memory analysis.
        relative_cost: operations of a training step, relative to keeping every name.
    """

    temporary_bytes: int = 0
    relative_cost: float = 1.0

    @property
    def choice(self) -> Memory:
        """The choice alone."""
        return Memory(self.recompute, self.offload, self.segment, self.chunk)


def plan(
    cell: Callable[[Any, Any, Any], tuple[Any, Any]],
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
    passes, and what either pass makes for itself. Choices of names, of segments, nested ones and schedules among them,
    of chunks, and of offloading where the device has a memory of its own, are put in order of their cost, which is
    counted in operations, and compiled in that order until one fits by XLA's memory analysis. The order does not depend
    on the budget, so a larger one never gives a plan of a higher cost.

    `Memory.fit(budget)` as the `memory` of `scan` plans in place.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: a carry, of the same.
        xs: inputs `(T, ...)`, of the same; or None, with `length` among the options.
        budget: a number of bytes, or a string such as "512MiB" or "2GB".
        objective: "time", the only one there is.
        measure: whether to run all choices that fit, and take the fastest. It needs arrays and takes longer.
        last_only: whether the loss depends on the last carry alone, so that outputs need not be kept.
        options: other arguments of `scan`, such as `seq_lengths`, `reverse` or `engine`.

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
    if measure:
        fitting = [choice for choice in choices if _fits(step, choice.memory, allowed)]
        chosen = fitting[step.fastest([choice.memory for choice in fitting])] if fitting else None
    else:
        chosen = next((choice for choice in choices if _fits(step, choice.memory, allowed)), None)
    if chosen is None:
        raise ValueError(_nothing_fits(step, choices, budget, allowed))
    return PlannedMemory(
        **vars(chosen.memory),
        temporary_bytes=step.temporary_bytes(chosen.memory) or 0,
        relative_cost=chosen.cost / choices[0].cost if choices[0].cost else 1.0,
    )


def fit(memory: MemoryBudget, cell: Any, params: Any, carry: Any, xs: Any, options: Mapping[str, Any]) -> Memory:
    """The choice for a budget that a scan was given, whose arguments may be traced."""
    params, carry, xs, arrays = jax.tree.map(_as_shape, (params, carry, xs, dict(options)))
    return plan(cell, params, carry, xs, budget=memory.budget, last_only=memory.last_only, **arrays).choice


def _choices(cell: Any, params: Any, carry: Any, xs: Any, options: Mapping[str, Any]) -> list[Candidate]:
    length = checks.sequence_length(xs, options.get("length"))
    if not is_count(length, least=0):
        raise ValueError(
            f"plan: the number of steps must be known when the program is traced; got {length}. Give a `Memory` "
            "without segments where time is a symbolic dimension of jax.export."
        )
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)
    return candidates(
        cell, params, carry, x, int(length), engine=options.get("engine", "auto"), can_offload=not host_is_device()
    )


def _fits(step: TrainingStep, memory: Memory, allowed: int) -> bool:
    """Whether a step fits; it is compiled unless it surely does not.

    A prediction of the peak is no bound: with segments it was 3.4 times XLA's, which does not make what it need not.
    """
    if step.kept_bytes(memory) - step.given_bytes > allowed:
        return False
    needed = step.temporary_bytes(memory)
    return needed is not None and needed <= allowed


def _nothing_fits(step: TrainingStep, choices: Sequence[Candidate], budget: Any, allowed: int) -> str:
    """The message, with the least that any choice needs: none needs less than it keeps."""
    least, memory = None, None
    for memory_choice in sorted((choice.memory for choice in choices), key=step.kept_bytes):
        if least is not None and step.kept_bytes(memory_choice) - step.given_bytes >= least:
            break
        needed = step.temporary_bytes(memory_choice)
        if needed is not None and (least is None or needed < least):
            least, memory = needed, memory_choice
    if least is None:
        return (
            "plan: XLA must have an analysis of memory to plan by; this backend has none. Choose a `Memory` yourself."
        )
    return (
        f"plan: nothing fits {budget!r}, {readable_bytes(allowed)}; the least that a choice needs is "
        f"{readable_bytes(least)}, {least} bytes, by {memory!r}. Give that, or run fewer rows or steps at once."
    )


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)


def _as_shape(leaf: Any) -> Any:
    if isinstance(leaf, bool | int | float | complex | str) or not is_array_like(leaf):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
