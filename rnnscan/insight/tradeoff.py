"""What memory choices cost: kept bytes, peak temporary bytes and time of the same function, side by side."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

import jax

from rnnscan.checkpointing import NestedScan
from rnnscan.insight.bytes import kept_bytes, temporary_bytes
from rnnscan.memory import Memory


@dataclass(frozen=True)
class Tradeoff:
    """What one memory choice costs.

    Attributes:
        choice: its name.
        memory: the choice.
        kept_bytes: what stays between the forward and the backward pass, counted.
        temporary_bytes: what both passes need beside arguments and results, by XLA's memory analysis; None where the
            backend has none.
        seconds: the time of both passes; the median of the rounds.
        relative_time: the same beside the first choice's; the median of the rounds' ratios.
    """

    choice: str
    memory: Memory | None
    kept_bytes: int
    temporary_bytes: int | None
    seconds: float
    relative_time: float


def measure_tradeoff(
    build: Callable[[Memory | None], tuple[Callable[..., Any], tuple[Any, ...]]],
    choices: Mapping[str, Memory | None],
    *,
    rounds: int = 10,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Tradeoff]:
    """Measure a loss and its gradient under several memory choices.

    All choices are compiled first. Then they take turns, `rounds` times, and times are compared within a round, so
    that what else the machine does meanwhile falls on all of them alike.

    Args:
        build: takes a memory choice and returns `(loss, arguments)`: a function with a scalar result that can be
            differentiated with respect to all of its arguments, and these.
        choices: memory choices by name; the first one is what the others' times are relative to.
        rounds: how often each is run.
        report: called with what is done next, in words.

    Returns:
        A `Tradeoff` for each choice, in their order.

    Raises:
        ValueError: if there is no choice or no round.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell = rs.cells.LSTM(8)
        >>> params, xs = cell.init(jax.random.key(0), input_size=4), jnp.ones((16, 2, 4))
        >>> def build(memory):
        ...     def loss(params, xs):
        ...         return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)[1].sum()
        ...     return loss, (params, xs)
        >>> plain, gates = measure_tradeoff(build, {"plain": None, "recompute": rs.Memory(recompute="all")}, rounds=1)
        >>> gates.kept_bytes < plain.kept_bytes / 2
        True
    """
    if not choices:
        raise ValueError("measure_tradeoff: there must be at least one memory choice; got none.")
    if rounds < 1:
        raise ValueError(f"measure_tradeoff: `rounds` must be at least 1; got {rounds}.")
    built = [build(memory) for memory in choices.values()]
    compiled = []
    for choice, (loss, arguments) in zip(choices, built, strict=True):
        report(f"compiling {choice}")
        compiled.append(_compile(loss, arguments))
    for run, (_, arguments) in zip(compiled, built, strict=True):
        _seconds(run, arguments)  # The first run of all is slower, and not counted.
    times = []
    for number in range(1, rounds + 1):
        report(f"round {number} of {rounds}")
        times.append([_seconds(run, arguments) for run, (_, arguments) in zip(compiled, built, strict=True)])
    return [
        Tradeoff(
            choice=choice,
            memory=memory,
            kept_bytes=kept_bytes(loss, *arguments),
            temporary_bytes=temporary_bytes(compiled[index]),
            seconds=median(round_times[index] for round_times in times),
            relative_time=median(round_times[index] / round_times[0] for round_times in times),
        )
        for index, ((choice, memory), (loss, arguments)) in enumerate(zip(choices.items(), built, strict=True))
    ]


def memory_choices(names: Sequence[str], length: int) -> dict[str, Memory | None]:
    """Memory choices to compare, by their names.

    Args:
        names: the names that the cell gives to intermediates.
        length: the number of steps.

    Returns:
        Plain autodiff first; nested segments last, where the sequence is long enough to nest.

    Example:
        >>> list(memory_choices(("gates",), length=64))
        ['plain autodiff', 'every name kept', 'recompute all', 'segment sqrt', 'segment 16,4']
    """
    kept: dict[str, Memory | None] = {"every name kept": Memory()} if names else {}
    choices: dict[str, Memory | None] = {
        "plain autodiff": None,
        **kept,
        "recompute all": Memory(recompute="all"),
        "segment sqrt": Memory(segment="sqrt"),
    }
    inner = ceil(round(length ** (1 / 3), 6))
    outer = inner**2
    if 1 < inner < outer < length:
        choices[f"segment {outer},{inner}"] = Memory(segment=(outer, inner))
    return choices


def choice_name(memory: Memory) -> str:
    """A memory choice in a few words.

    Args:
        memory: the choice.

    Returns:
        The words.

    Example:
        >>> choice_name(Memory(recompute=("gates",), segment=(64, 8))), choice_name(Memory())
        ('recompute gates, segment 64,8', 'every name kept')
    """
    words = []
    if memory.recompute:
        words.append(
            f"recompute {memory.recompute if isinstance(memory.recompute, str) else ','.join(memory.recompute)}"
        )
    if memory.offload:
        words.append(f"offload {','.join(memory.offload)}")
    if isinstance(memory.segment, NestedScan):
        words.append(f"schedule of {memory.segment.slots} slots")
    elif memory.segment is not None:
        sizes = memory.segment if isinstance(memory.segment, tuple) else (memory.segment,)
        words.append(f"segment {','.join(map(str, sizes))}")
    if memory.chunk is not None:
        words.append(f"chunk {memory.chunk}")
    return ", ".join(words) or "every name kept"


def pareto_front(points: Sequence[tuple[int | float, int | float]]) -> list[int]:
    """The points that no other one beats in one coordinate without losing in the other.

    Args:
        points: for each choice its bytes and its time, of which less is better.

    Returns:
        Their numbers, in the order of the first coordinate.

    Example:
        >>> pareto_front([(4, 1.0), (2, 1.5), (3, 1.6), (1, 2.0), (4, 1.0)])
        [3, 1, 0]
    """
    front: list[int] = []
    least = float("inf")
    for number in sorted(range(len(points)), key=lambda number: points[number]):
        if points[number][1] < least:
            least = points[number][1]
            front.append(number)
    return front


def _compile(loss: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    loss_and_gradient = jax.value_and_grad(loss, argnums=tuple(range(len(arguments))))
    return jax.jit(loss_and_gradient).lower(*arguments).compile()


def _seconds(run: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start
