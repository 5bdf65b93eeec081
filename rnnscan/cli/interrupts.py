"""A Ctrl-C that is remembered, because Python can lose it.

Where Python calls a destructor or a callback of compiled code (JAX has both), it prints a KeyboardInterrupt and goes
on. A command that then waits for its input would wait for ever.
"""

import signal
import sys
import threading
from types import FrameType
from typing import Any


_arrived = threading.Event()


def remember_interrupts() -> None:
    """Remember each Ctrl-C, and raise KeyboardInterrupt. Where Ctrl-C is ignored, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, _remember_and_raise)
    show = sys.unraisablehook

    def show_others(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            show(lost)

    sys.unraisablehook = show_others


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a Ctrl-C has arrived. Call it before waiting for input.

    Raises:
        KeyboardInterrupt: a Ctrl-C has arrived since `remember_interrupts`.
    """
    if _arrived.is_set():
        raise KeyboardInterrupt


def _remember_and_raise(number: int, frame: FrameType | None) -> None:
    _arrived.set()
    signal.default_int_handler(number, frame)
