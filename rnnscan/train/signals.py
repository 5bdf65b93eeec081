"""Deferred signals. Python delivers them to the main thread; in other threads these functions do nothing."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def recorded(number: signal.Signals) -> Iterator[Callable[..., bool]]:
    """Record a signal instead of handling it.

    Args:
        number: the signal.

    Yields:
        A function that returns whether it has arrived.

    Example:
        >>> import signal
        >>> with recorded(signal.SIGTERM) as has_arrived:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(has_arrived())
        True
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda *_: False
        return
    handler = signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield lambda *_: bool(arrived)
    finally:
        # None: Python did not install the handler, so it cannot restore it.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Defer a Ctrl-C to the end, so that a write completes."""
    with recorded(signal.SIGINT) as interrupted:
        yield
    if interrupted():
        signal.raise_signal(signal.SIGINT)


@contextmanager
def first_interrupt_deferred() -> Iterator[Callable[..., bool]]:
    """Defer the first Ctrl-C to the end; a second one is handled at once. Where Ctrl-C is ignored, it stays ignored.

    Yields:
        A function that returns whether one has arrived.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda *_: False
        return
    arrived: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before)
        arrived.append(number)
        # Not print: a handler may run within a write to the same file object.
        os.write(_STDERR, _DEFERRED)

    signal.signal(signal.SIGINT, record)
    try:
        yield lambda *_: bool(arrived)
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        signal.raise_signal(signal.SIGINT)


_STDERR = 2  # The file descriptor.
_DEFERRED = b"\nCtrl-C: stopping after this step, with a checkpoint. Press it again to stop at once.\n"
