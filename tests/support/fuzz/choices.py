"""Whose choices the engine makes for a random cell."""

from collections.abc import Iterator
from dataclasses import replace

from rnnscan.engine.costs.heuristics import BACKENDS, Heuristics


def choices_of(platform: str) -> Iterator[tuple[str, Heuristics]]:
    """The choices of a platform, in words. Those of a CPU with its small loops as one kernel too.

    All random cells are small: without the first of them a CPU would run few as it runs large ones.
    """
    yield f"a {platform}", replace(BACKENDS[platform], one_kernel=False)
    if platform == "cpu":
        yield "a cpu, in one kernel", replace(BACKENDS[platform], one_kernel=True)
