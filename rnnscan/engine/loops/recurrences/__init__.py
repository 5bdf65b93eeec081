"""Executors of recurrences: each runs a loop over all steps of a chunk in parallel.

A new kind is a file here, its line below, and the test of its form in `analysis/recurrence.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rnnscan.engine.analysis.recurrence import Kind
from rnnscan.engine.loops.newton_solve import run_newton
from rnnscan.engine.loops.recurrences.affine import run_affine, run_delay
from rnnscan.engine.loops.recurrences.clamped import run_clamped
from rnnscan.engine.loops.recurrences.matrix import run_matrix
from rnnscan.engine.loops.step_by_step import CycleLoop


# (loop, leaves before the first step to run) -> (`Recurrence.results`, stacked; leaves after the last step to run)
Executor: TypeAlias = Callable[[CycleLoop, Sequence[Any]], tuple[list[Any], list[Any]]]

EXECUTORS: Mapping[Kind, Executor] = {
    "delay": run_delay,
    "affine": run_affine,
    "clamped": run_clamped,
    "matrix": run_matrix,
    "block": run_newton,
    "elementwise": run_newton,
    "dense": run_newton,
}
