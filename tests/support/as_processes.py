"""Functions in several processes of JAX that are none: threads, which exchange as processes do."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils


def in_threads(monkeypatch: pytest.MonkeyPatch, work: Callable[[int], Any], count: int = 2) -> list[Any]:
    """Run a function in so many threads. For JAX's functions each is a process.

    Args:
        monkeypatch: pytest's fixture.
        work: gets the number of its process.
        count: the number of processes.

    Returns:
        The result of each, or its error.
    """
    numbers: dict[int, int] = {}
    given: list[Any] = [None] * count
    barrier = threading.Barrier(count, timeout=30)

    def gather(value: Any) -> np.ndarray:
        given[jax.process_index()] = np.asarray(value)
        barrier.wait()
        stacked = np.stack(given)
        barrier.wait()
        return stacked

    monkeypatch.setattr(jax, "process_count", lambda: count)
    monkeypatch.setattr(jax, "process_index", lambda: numbers[threading.get_ident()])
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    found: list[Any] = [None] * count

    def run(number: int) -> None:
        numbers[threading.get_ident()] = number
        try:
            found[number] = work(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
