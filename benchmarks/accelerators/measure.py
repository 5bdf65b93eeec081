"""Time the training steps on the device of this machine, where it has one."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax

from benchmarks.accelerators import workloads
from benchmarks.accelerators.choices import tuned
from benchmarks.accelerators.tables import Tables
from benchmarks.accelerators.target import Platform


ROUNDS = 9


def measure_all(tables: Tables, platform: Platform, report: Callable[[str], None]) -> None:
    """Put the measured time of each training step into the tables."""
    for name, rows in tables.rows.items():
        arguments = workloads.ALL[name].arguments()
        steps = {}
        for row, scan in workloads.scans(name).items():
            report(f"{name}: compiling {row}")
            with tuned(row, platform):
                steps[row] = jax.jit(workloads.trained(name, scan)).lower(*arguments).compile()
        report(f"{name}: timing")
        for row, seconds in median_seconds(steps, arguments).items():
            rows[row].measured = seconds


def median_seconds(
    steps: dict[str, Callable[..., Any]], arguments: tuple[Any, ...], rounds: int = ROUNDS
) -> dict[str, float]:
    """The median time of each step. The steps take turns."""
    times: dict[str, list[float]] = {row: [] for row in steps}
    for _ in range(rounds + 1):
        for row, step in steps.items():
            begin = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            times[row].append(time.perf_counter() - begin)
    # The first call moves the arguments and loads the program.
    return {row: median(of[1:]) for row, of in times.items()}
