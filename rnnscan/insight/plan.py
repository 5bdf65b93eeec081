"""plan(): a memory choice that fits a budget."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan import checks
from rnnscan.insight.bytes import kept_bytes, temporary_bytes
from rnnscan.insight.cost import forward_cost, training_cost
from rnnscan.insight.tradeoff import measure_tradeoff, readable_bytes
from rnnscan.memory import Memory
from rnnscan.messages import is_count, listing
from rnnscan.naming import look_over
from rnnscan.scan import scan


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
# With more names than this, they are dropped one after the other, those of most bytes first.
_MOST_NAMES = 4


@dataclass(frozen=True)
class PlannedMemory(Memory):
    """A memory choice that `plan` made, with what it expects of it.

    Attributes:
        temporary_bytes: what both passes need beside arguments and results, by XLA's memory analysis.
        relative_cost: operations of a training step, relative to keeping every name.
    """

    temporary_bytes: int = 0
    relative_cost: float = 1.0


@dataclass(frozen=True)
class _Candidate:
    memory: Memory
    cost: int | float


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
) -> PlannedMemory:
    """The fastest memory choice whose training step fits a budget.

    The budget is for what a training step needs at once beside its arguments and results: what is kept between the
    passes, and what either pass makes for itself. Choices of names, of segments nested up to three deep and of chunks
    are put in order of their cost, which is counted in operations, and compiled in that order until one fits by XLA's
    memory analysis. The order does not depend on the budget, so a larger one never gives a plan of a higher cost.
    Offloading is not among the choices.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: a carry, of the same.
        xs: inputs `(T, ...)`, of the same.
        budget: a number of bytes, or a string such as "512MiB" or "2GB".
        objective: "time", the only one there is.
        measure: whether to run all choices that fit, and take the fastest. It needs arrays and takes longer.
        last_only: whether the loss depends on the last carry alone, so that outputs need not be kept.

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
    length = checks.sequence_length(xs, None)
    candidates = list(_candidates(cell, params, carry, xs, length))
    step = _TrainingStep(cell, params, carry, xs, last_only=last_only)
    fitting = []
    for candidate in candidates:
        needed = step.temporary_bytes(candidate.memory, at_most=allowed)
        if needed is not None and needed <= allowed:
            fitting.append((candidate, needed))
            if not measure:
                break
    if not fitting:
        _refuse(step, candidates, budget, allowed)
    chosen, needed = fitting[step.fastest([candidate.memory for candidate, _ in fitting])] if measure else fitting[0]
    relative = chosen.cost / candidates[0].cost if candidates[0].cost else 1.0
    return PlannedMemory(**vars(chosen.memory), temporary_bytes=needed, relative_cost=relative)


def budget_bytes(budget: int | str) -> int:
    """A budget in bytes.

    Args:
        budget: a number of bytes, or one with a unit: "512MiB", "2 GB", "1.5GiB".

    Returns:
        The bytes.

    Raises:
        ValueError: if it is no size, or not above 0.

    Example:
        >>> from rnnscan.insight.plan import budget_bytes
        >>> budget_bytes("1.5KiB"), budget_bytes("2 kB"), budget_bytes(7)
        (1536, 2000, 7)
    """
    count: float | None = budget if is_count(budget, least=-(10**30)) else None  # type: ignore[assignment]
    if isinstance(budget, str) and (found := re.fullmatch(r"\s*(-?[\d.]+)\s*([A-Za-z]*)\s*", budget)):
        unit = _UNITS.get(found[2].upper() or "B")
        try:
            count = None if unit is None else float(found[1]) * unit
        except ValueError:
            count = None
    if count is None or not count > 0:
        raise ValueError(
            f"plan: `budget` must be a number of bytes above 0, or a size such as '512MiB'; got {budget!r}. "
            f"Units are {listing(['B', 'KiB', 'MiB', 'GiB', 'TiB', 'kB', 'MB', 'GB', 'TB'])}."
        )
    return int(count)


class _TrainingStep:
    """The gradient of a loss that weighs every output, under any memory choice; each is compiled once."""

    def __init__(self, cell: Any, params: Any, carry: Any, xs: Any, *, last_only: bool) -> None:
        self._cell = cell
        self._arguments = (params, carry, xs)
        self._last_only = last_only
        # A sum over outputs would let XLA leave their cotangents out, so their weights are arguments.
        outputs = jax.eval_shape(partial(self._run, Memory()), *self._arguments)
        self._weights = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), outputs)
        self._given = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self._arguments))

    def temporary_bytes(self, memory: Memory, *, at_most: int | None = None) -> int | None:
        """What the step needs beside arguments and results; None where that is surely more than `at_most`."""
        if at_most is not None and self.kept_bytes(memory) - self._given > at_most:
            return None
        compiled = jax.jit(self._gradient(memory)).lower(self._weights, *self._arguments).compile()
        return temporary_bytes(compiled)

    def kept_bytes(self, memory: Memory) -> int:
        """What stays between the passes, arguments among it."""
        return kept_bytes(lambda *arguments: self._run(memory, *arguments), *self._arguments)

    def fastest(self, choices: list[Memory]) -> int:
        """The number of the choice that takes the least time."""
        random = np.random.default_rng(0)
        weights = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype), self._weights)

        def build(memory: Memory | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return lambda params: self._loss(memory, weights, params, *self._arguments[1:]), self._arguments[:1]

        rows = measure_tradeoff(build, {str(number): memory for number, memory in enumerate(choices)})
        return int(np.argmin([row.relative_time for row in rows]))

    def _run(self, memory: Memory | None, params: Any, carry: Any, xs: Any) -> Any:
        carry, ys = scan(self._cell, params, carry, xs, memory=memory)
        outputs = jax.tree.leaves(carry if self._last_only else (carry, ys))
        return [leaf for leaf in outputs if jnp.issubdtype(leaf.dtype, jnp.inexact)]

    def _loss(self, memory: Memory | None, weights: Any, *arguments: Any) -> Any:
        outputs = self._run(memory, *arguments)
        return sum(jnp.vdot(weight, leaf).real for weight, leaf in zip(weights, outputs, strict=True))

    def _gradient(self, memory: Memory) -> Callable[..., Any]:
        return jax.grad(lambda *given: self._loss(memory, *given), argnums=(1, 2, 3), allow_int=True)


def _candidates(cell: Any, params: Any, carry: Any, xs: Any, length: int) -> Iterator[_Candidate]:
    """Memory choices in the order of their cost; among those of one cost the ones with fewer, longer segments first."""
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)
    names = _names(cell, params, carry, x)
    forward = forward_cost(cell, params, carry, x)

    def candidate(recompute: Any, segment: Any = None, chunk: int | None = None) -> _Candidate:
        kept = () if recompute == "all" else [name for name in names if name not in recompute]
        cost = training_cost(cell, kept, params, carry, x)
        depth = len(segment) if isinstance(segment, tuple) else 0
        return _Candidate(Memory(recompute=recompute, segment=segment, chunk=chunk), cost + depth * forward)

    dropped = [()] + [chosen for count in range(1, len(names)) for chosen in combinations(names, count)]
    if len(names) > _MOST_NAMES:
        dropped = [names[:count] for count in range(len(names))]
    plain = [candidate(chosen) for chosen in dropped] + [candidate("all")]
    if length >= 8:
        plain.append(candidate("all", chunk=4))
    found = plain + [candidate(chosen, segment) for segment in _segments(length) for chosen in ((), "all")]
    yield from sorted(found, key=lambda one: one.cost)


def _names(cell: Any, params: Any, carry: Any, x: Any) -> tuple[str, ...]:
    found: list[tuple[str, ...]] = []

    def look(params: Any, carry: Any, x: Any) -> None:
        found.append(look_over(lambda carry, x: cell(params, carry, x), carry, x).names.known)

    jax.eval_shape(look, params, carry, x)
    return found[0]


def _segments(length: int) -> Iterator[tuple[int, ...]]:
    """Segments of one level of all powers of two, and of two and three levels around the roots of the length."""
    size = 2 ** max(0, (length - 1).bit_length() - 1)
    while size >= 4 and size < length:
        yield (size,)
        size //= 2
    for levels in (2, 3):
        root = round(length ** (1 / (levels + 1)))
        for inner in (2 * root, root):
            sizes = tuple(inner ** (levels - level) for level in range(levels))
            if inner >= 2 and sizes[0] < length:
                yield sizes


def _refuse(step: _TrainingStep, candidates: list[_Candidate], budget: Any, allowed: int) -> None:
    smallest = sorted((candidate.memory for candidate in candidates), key=step.kept_bytes)[:3]
    least, memory = min(((step.temporary_bytes(memory) or 0), repr(memory)) for memory in smallest)
    raise ValueError(
        f"plan: nothing fits {budget!r}, {readable_bytes(allowed)}; the least that a choice needs is "
        f"{readable_bytes(least)}, {least} bytes, by {memory}. Give that, or run fewer rows or steps at once."
    )


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)
