"""Signals that wait for the right moment. Python gives them to the main thread alone; in others nothing is done."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def noted(number: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Note a signal instead of doing what it does otherwise.

    Args:
        number: the signal.

    Yields:
        A function that says whether it has come.

    Example:
        >>> import signal
        >>> with noted(signal.SIGTERM) as has_come:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(has_come())
        True
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    handler = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        # None: the handler was not installed by Python, so it cannot put it back.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Let a Ctrl-C wait until the end, so that what is written meanwhile is there as a whole."""
    with noted(signal.SIGINT) as interrupted:
        yield
    if interrupted():
        signal.raise_signal(signal.SIGINT)
