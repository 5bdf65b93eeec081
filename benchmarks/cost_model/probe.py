"""A constant as a difference of the times of programs that take turns."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Sizes:
    """The sizes of the programs.

    Attributes:
        steps: the steps of a loop.
        elements: the elements of its carry, which fit a core's first cache.
        width: the features of products.
        rows: the rows of products that run for many steps at once.
        rounds: how often each program runs.
    """

    steps: int = 512
    elements: int = 4096
    width: int = 256
    rows: int = 4096
    rounds: int = 40


@dataclass(frozen=True)
class Probe:
    """One measurement of a constant: `sum(weight * time) / units`.

    Attributes:
        field: the field of `Machine`.
        title: what is measured.
        programs: programs without arguments, each with the weight of its time.
        units: how often the programs with weight 1 do more than the others what the constant is the time of.
    """

    field: str
    title: str
    programs: Sequence[tuple[float, Callable[[], Any]]]
    units: float

    def measure(self, rounds: int) -> float:
        """Nanoseconds, from the least time of each program over rounds in which they take turns."""
        compiled = [(weight, jax.jit(program).lower().compile()) for weight, program in self.programs]
        for _, run in compiled:
            jax.block_until_ready(run())
        least, order, shuffle = [math.inf] * len(compiled), list(range(len(compiled))), random.Random(0).shuffle
        for _ in range(rounds):
            shuffle(order)
            for index in order:
                least[index] = min(least[index], _seconds(compiled[index][1]))
        times = zip(least, compiled, strict=True)
        return 1e9 * sum(weight * seconds for seconds, (weight, _) in times) / self.units


def measure_all(probes: Sequence[Probe], rounds: int, report: Callable[[Probe], None]) -> Mapping[str, list[float]]:
    """The nanoseconds that each probe measures, by field.

    Args:
        probes: the probes.
        rounds: how often each program runs.
        report: called before each probe.
    """
    nanoseconds: dict[str, list[float]] = {}
    for probe in probes:
        report(probe)
        nanoseconds.setdefault(probe.field, []).append(probe.measure(rounds))
    return nanoseconds


def loop(body: Callable[[Any], Any], carry: Any, steps: int) -> Callable[[], Any]:
    """A program that runs `carry = body(carry)` so many times.

    A product beside it keeps XLA from compiling the loop to one function, as it does with a tiny one (jax 0.10.0).
    """

    def step(state: Any, _: None) -> tuple[Any, None]:
        carry, beside = state
        return (body(carry), beside @ beside), None

    return lambda: lax.scan(step, (carry, jnp.eye(_BESIDE)), None, length=steps)[0]


# With 24 columns and more a product is a call.
_BESIDE = 32


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start
