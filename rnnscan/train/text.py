"""Text from files: its training and held-out bytes, and contiguous streams of them."""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, UInt8


# Every 10th file is held out; of fewer files, the last 10th of each.
HELD_OUT_SHARE = 10

# The first byte of each, and the one after its last.
Ranges: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Text:
    """The training and held-out bytes of a text.

    Attributes:
        train: the bytes to train on.
        held_out: the bytes to evaluate on.
        train_files: the number of files of the training bytes.
        held_out_files: the number of files of the held-out bytes: other files, or the ends of the same files.
        read: the ranges of the training bytes that one of several processes has read; the others are 0. None: all.
    """

    train: UInt8[np.ndarray, " train_bytes"]
    held_out: UInt8[np.ndarray, " held_out_bytes"]
    train_files: int
    held_out_files: int
    read: Ranges | None = None

    @property
    def description(self) -> str:
        """The held-out part in words."""
        if self.held_out_files != self.train_files:
            return f"{_count_files(self.held_out_files)} held out"
        if self.train_files == 1:
            return "the last tenth of the file held out"
        return f"the last tenth of each of {self.train_files} files held out"

    @property
    def sha256(self) -> str:
        """A fingerprint of a text that is read whole, and of its split."""
        return hashlib.sha256(self.train.tobytes() + b"\0held out\0" + self.held_out.tobytes()).hexdigest()


def standard_library() -> list[Path]:
    """The top-level modules of Python's standard library, sorted by name: text that every machine has.

    Raises:
        FileNotFoundError: if this Python has no such files, because its library is a zip file.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(folder.glob("*.py")) if path.stat().st_size]
    if len(files) < 2:
        raise FileNotFoundError(
            f"train: without a FILE, the standard library must have files *.py; got {len(files)} of them in {folder}. "
            "Pass a FILE."
        )
    return files


def read_text(files: Sequence[Path], ranges_to_read: Callable[[int], Ranges] | None = None) -> Text:
    """Read files as one text, and hold out a fixed part.

    Files are sorted by path. Of ten or more, every tenth is held out; of fewer, the last tenth of each.

    Args:
        files: paths of any files; duplicates are read once. Empty: `standard_library`.
        ranges_to_read: the ranges to read of the training bytes, as a function of their number; None: all.

    Returns:
        The text.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file is empty, or changes while it is read.

    Example:
        >>> text = read_text([])
        >>> text.held_out_files < text.train_files
        True
    """
    paths = sorted({path.resolve() for path in files}) or standard_library()
    whole = [_Piece(path, 0, _size(path)) for path in paths]
    if len(whole) < HELD_OUT_SHARE:
        borders = [piece.size - piece.size // HELD_OUT_SHARE for piece in whole]
        train = [replace(piece, stop=border) for piece, border in zip(whole, borders, strict=True)]
        held_out = [replace(piece, start=border) for piece, border in zip(whole, borders, strict=True)]
    else:
        train = [piece for number, piece in enumerate(whole, 1) if number % HELD_OUT_SHARE]
        held_out = whole[HELD_OUT_SHARE - 1 :: HELD_OUT_SHARE]
    read = None if ranges_to_read is None else ranges_to_read(sum(piece.size for piece in train))
    return Text(_read(train, read), _read(held_out, None), len(train), len(held_out), read)


def stream_bytes(text: UInt8[np.ndarray, " bytes"], rows: int) -> UInt8[np.ndarray, "length_plus_1 rows"]:
    """A read-only view of a text as `contiguous_streams`. It reads no byte of the text."""
    length = (text.size - 1) // rows
    (stride,) = text.strides
    return np.lib.stride_tricks.as_strided(text, (length + 1, rows), (stride, length * stride), writeable=False)


def contiguous_streams(text: UInt8[np.ndarray, " bytes"], rows: int) -> Int[np.ndarray, "length_plus_1 rows"]:
    """Split a text into contiguous streams.

    Stream n begins with the last byte of stream n - 1, because a byte is an input and the target of the byte before it.

    Args:
        text: the bytes.
        rows: the number of streams, N.

    Returns:
        `(length + 1, N)`: all rows but the last are inputs, all but the first are targets. Up to N - 1 bytes at the end
        of the text are dropped.

    Example:
        >>> import numpy as np
        >>> contiguous_streams(np.arange(7, dtype=np.uint8), rows=2).T
        array([[0, 1, 2, 3],
               [3, 4, 5, 6]], dtype=int32)
    """
    return stream_bytes(text, rows).astype(np.int32)


def check_enough(text: Text, *, batch: int, window: int) -> None:
    """Raise a ValueError if a text is too short to train on a window of each stream, or to evaluate on."""
    needed = batch * window + 1
    if text.train.size < needed:
        raise ValueError(
            f"train: the training bytes must be at least batch * window + 1 = {batch} * {window} + 1 = {needed}, "
            f"the held-out part not counted; got {text.train.size}. Use more text, or a smaller batch or window."
        )
    if text.held_out.size < 2:
        raise ValueError(
            f"train: the held-out bytes must be at least 2, an input and its target; got {text.held_out.size}. Use "
            "more text: of fewer than ten files the last tenth of each is held out."
        )


def _count_files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


@dataclass(frozen=True)
class _Piece:
    """A range of a file's bytes."""

    path: Path
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def _size(path: Path) -> int:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise type(error)(
            f"train: every FILE must be a readable file; got {path}: {error.strerror}. "
            "Check the path; for a directory, pass its files."
        ) from error
    if not size:
        raise ValueError(f"train: every FILE must hold text; got {path}, which is empty. Leave it out.")
    return size


def _read(pieces: Sequence[_Piece], ranges: Ranges | None) -> UInt8[np.ndarray, " bytes"]:
    """The bytes of pieces in a row; those outside of the ranges are 0."""
    size = sum(piece.size for piece in pieces)
    joined = np.zeros(size, np.uint8)  # It takes no memory for pages that nobody writes.
    start = 0
    for piece in pieces:
        for first, last in [(0, size)] if ranges is None else ranges:
            here = joined[max(first, start) : min(last, start + piece.size)]
            if here.size:
                _read_into(here, piece.path, piece.start + max(first, start) - start)
        start += piece.size
    return joined


def _read_into(read: UInt8[np.ndarray, " bytes"], path: Path, start: int) -> None:
    with path.open("rb") as file:
        file.seek(start)
        if file.readinto(read.data) != read.size:
            raise ValueError(f"train: a FILE must not change while it is read; got {path}, which is shorter now.")
