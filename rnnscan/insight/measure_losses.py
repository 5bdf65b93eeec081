"""Kept bytes, temporary bytes and time of one loss under several memory choices."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax

from rnnscan.memory import Memory
from rnnscan.planning.bytes import kept_bytes, temporary_bytes


@dataclass(frozen=True)
class Tradeoff:
    """The cost of one memory choice.

    Attributes:
        choice: its name.
        memory: the choice.
        kept_bytes: bytes kept between the forward and the backward pass, counted.
        temporary_bytes: bytes of both passes besides arguments and results, by XLA's memory analysis; None if the
            backend has none.
        seconds: the time of both passes; the median of the rounds.
        relative_time: the time relative to the first choice; the median of the rounds' ratios.
    """

    choice: str
    memory: Memory | None
    kept_bytes: int
    temporary_bytes: int | None
    seconds: float
    relative_time: float


def measure_losses(
    build: Callable[[Memory | None], tuple[Callable[..., Any], tuple[Any, ...]]],
    choices: Mapping[str, Memory | None],
    *,
    rounds: int = 10,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Tradeoff]:
    """Measure a loss of your own and its gradient under several memory choices.

    All choices are compiled first. Then they take turns, `rounds` times. Times are compared within a round, so that
    other load on the machine affects all choices alike. `measure_tradeoff` does the same for a cell or a net.

    Args:
        build: takes a memory choice and returns `(loss, arguments)`: a function with a scalar result, differentiable
            with respect to all of its arguments, and the arguments.
        choices: memory choices by name; times are relative to the first one.
        rounds: the number of runs of each choice.
        report: called with a description of each stage.

    Returns:
        A `Tradeoff` for each choice, in order.

    Raises:
        ValueError: without a choice or a round.

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
        >>> plain, gates = measure_losses(build, {"plain": None, "recompute": rs.Memory(recompute="all")}, rounds=1)
        >>> gates.kept_bytes < plain.kept_bytes / 2
        True
    """
    if not choices:
        raise ValueError("measure_losses: there must be at least one memory choice; got none.")
    if rounds < 1:
        raise ValueError(f"measure_losses: `rounds` must be at least 1; got {rounds}.")
    built = [build(memory) for memory in choices.values()]
    compiled = []
    for choice, (loss, arguments) in zip(choices, built, strict=True):
        report(f"compiling {choice}")
        compiled.append(_compile(loss, arguments))
    for run, (_, arguments) in zip(compiled, built, strict=True):
        _seconds(run, arguments)  # The first run is slower, and not counted.
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


def _compile(loss: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    loss_and_gradient = jax.value_and_grad(loss, argnums=tuple(range(len(arguments))))
    return jax.jit(loss_and_gradient).lower(*arguments).compile()


def _seconds(run: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - start
