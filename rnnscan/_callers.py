"""The line of a program that a warning is about, outside of rnnscan and the libraries that run it. Without jax."""

import inspect
import re
import warnings
from types import FrameType
from typing import NamedTuple


class Line(NamedTuple):
    """A line of a program.

    Attributes:
        file: its file.
        number: its number.
        module: the name of its module, by which users filter warnings.
    """

    file: str
    number: int
    module: str

    def warn(self, message: str, category: type[Warning]) -> None:
        """Issue a warning that points at this line."""
        warnings.warn_explicit(message, category, self.file, self.number, module=self.module)


def calling_line(libraries: str) -> Line:
    """The innermost line on the stack that is outside of libraries; else the outermost.

    Args:
        libraries: the names of their packages or modules, with "|" between them.
    """
    frame = inspect.currentframe()
    assert frame is not None
    while frame.f_back is not None and _is_of(libraries, frame):
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno, _module(frame))


def _is_of(libraries: str, frame: FrameType) -> bool:
    return bool(re.match(rf"(?:{libraries})\b", _module(frame)))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "<unknown>"))
