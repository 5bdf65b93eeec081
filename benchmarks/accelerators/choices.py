"""The engine's choices that buy launches or cycles with time to compile, and what programs cost without them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from benchmarks.accelerators.figures import Figures
from benchmarks.accelerators.target import LOWERED_FOR, Platform
from rnnscan.engine.costs import heuristics


OWN = ("rnnscan", "rnnscan-all")
# A choice that takes more than this of plain's time to compile must buy at least so much.
LONGEST_COMPILE, LEAST_BOUGHT = 3.5, 1.5

_WITHOUT: dict[Platform, dict[str, Any]] = {
    "gpu": {"unroll": 1, "longest_window": 128},
    "tpu": {"linear": "loop", "least_state": None},
}
IN_WORDS: dict[Platform, str] = {
    "gpu": "loops run one step a trip, and windows of matrix states have 128 steps",
    "tpu": "linear recurrences and matrix states run step by step",
}


def tuned(row: str, platform: Platform, *, without: bool = False) -> AbstractContextManager[None]:
    """The context in which a row is traced: JAX's backend is the CPU, and the engine must not choose for it.

    Args:
        row: the name of a row.
        platform: for which it is compiled.
        without: whether to leave out the choices that take long to compile.
    """
    if not row.startswith("rnnscan"):
        return nullcontext()
    chosen = heuristics.for_platform(LOWERED_FOR[platform])
    return heuristics.using(replace(chosen, **_WITHOUT[platform]) if without else chosen)


def compiles_long(rows: Mapping[str, Figures], row: str) -> bool:
    """Whether a row takes long to compile, beside plain."""
    return row in rows and rows[row].compile_seconds > LONGEST_COMPILE * rows["plain"].compile_seconds


def is_bought(one: Figures, without: Figures | None) -> bool:
    """Whether the time to compile buys launches or cycles."""
    return without is not None and without.cost >= LEAST_BOUGHT * one.cost
