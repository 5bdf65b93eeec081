"""A version of rnnscan in a process of its own, which measures cases one after the other.

This module must not import rnnscan: a worker imports it before it chooses one.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any


class Checkout:
    """A worker process whose rnnscan is that of a checkout. The benchmarks are the caller's."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._start()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function there. Modules are pickled by name, so those of the benchmarks are imported there.

        Raises:
            BrokenProcessPool: if the process died, out of memory, for example. The next call starts another one.
        """
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            self._start()
            raise

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()

    def _start(self) -> None:
        # One process. "spawn", because a fork would inherit rnnscan and JAX.
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _import_rnnscan, (str(self.path),))


def _import_rnnscan(path: str) -> None:
    sys.path.insert(0, path)
    import rnnscan

    sys.path.remove(path)
    place = Path(rnnscan.__file__).parents[1]
    if place != Path(path):
        raise ImportError(f"sweep: rnnscan must come from {path}; got {place}.")
