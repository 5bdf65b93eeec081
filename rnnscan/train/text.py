"""Text from files: its training and held-out bytes, and contiguous streams of them."""

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8


# Every 10th file is held out; of fewer files, the last 10th of each.
HELD_OUT_SHARE = 10


@dataclass(frozen=True)
class Text:
    """The training and held-out bytes of a text.

    Attributes:
        train: the bytes to train on.
        held_out: the bytes to evaluate on.
        train_files: the number of files of the training bytes.
        held_out_files: the number of files of the held-out bytes: other files, or the ends of the same files.
    """

    train: UInt8[np.ndarray, " train_bytes"]
    held_out: UInt8[np.ndarray, " held_out_bytes"]
    train_files: int
    held_out_files: int

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
        """A fingerprint of the text and its split."""
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


def read_text(files: Sequence[Path]) -> Text:
    """Read files as one text, and hold out a fixed part.

    Files are sorted by path. Of ten or more, every tenth is held out; of fewer, the last tenth of each.

    Args:
        files: paths of any files; duplicates are read once. Empty: `standard_library`.

    Returns:
        The text.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file is empty.

    Example:
        >>> text = read_text([])
        >>> text.held_out_files < text.train_files
        True
    """
    paths = sorted({path.resolve() for path in files}) or standard_library()
    contents = [_read(path) for path in paths]
    if len(contents) < HELD_OUT_SHARE:
        borders = [content.size - content.size // HELD_OUT_SHARE for content in contents]
        train = [content[:border] for content, border in zip(contents, borders, strict=True)]
        held_out = [content[border:] for content, border in zip(contents, borders, strict=True)]
    else:
        train = [content for number, content in enumerate(contents, 1) if number % HELD_OUT_SHARE]
        held_out = contents[HELD_OUT_SHARE - 1 :: HELD_OUT_SHARE]
    return Text(np.concatenate(train), np.concatenate(held_out), len(train), len(held_out))


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
    length = (text.size - 1) // rows
    streams = [text[row * length : (row + 1) * length + 1] for row in range(rows)]
    return np.stack(streams, axis=1).astype(np.int32)


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


def _read(path: Path) -> UInt8[np.ndarray, " bytes"]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise type(error)(
            f"train: every FILE must be a readable file; got {path}: {error.strerror}. "
            "Check the path; for a directory, pass its files."
        ) from error
    if not content:
        raise ValueError(f"train: every FILE must hold text; got {path}, which is empty. Leave it out.")
    return np.frombuffer(content, np.uint8)
