"""The load of other programs while rows are timed."""

import os
import time
from pathlib import Path

from benchmarks.machine import LOAD_UNKNOWN


# A share of the processors. Above it torch's threads, which spin while they wait, slow down more than XLA's: more than
# tenfold if every processor is taken.
TOO_MUCH = 0.1


class Others:
    """The share of all processors that other programs have taken since this was made."""

    def __init__(self) -> None:
        self._start = _busy_seconds()

    def share(self) -> float | None:
        """Between 0 and 1; None if the system does not report it."""
        end = _busy_seconds()
        if self._start is None or end is None:
            return None
        wall, everyone, own = (after - before for before, after in zip(self._start, end, strict=True))
        return max(0.0, everyone - own) / (wall * (os.cpu_count() or 1)) if wall > 0 else 0.0

    def sentence(self) -> str:
        """The share, as pages say it."""
        share = self.share()
        return LOAD_UNKNOWN if share is None else f"Other programs took {100 * share:.0f} % of the processors."


def _busy_seconds() -> tuple[float, float, float] | None:
    """The clock, the busy seconds of all processors, and those of this process and of those that it waited for."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return None
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, statistics.read_text().split()[1:9])
    everyone = (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return time.perf_counter(), everyone, own.user + own.system + own.children_user + own.children_system
