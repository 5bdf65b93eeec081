"""From files to bytes to contiguous streams: what is trained on, and what is held out."""

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8


# One file in so many is held out; of fewer files, one byte in so many of each.
HELD_OUT_SHARE = 10


@dataclass(frozen=True)
class Text:
    """A text as bytes, of which a part is held out.

    Attributes:
        train: the bytes to train on.
        held_out: the bytes to evaluate on; no part of a file is in both.
        train_files: how many files the bytes to train on come from.
        held_out_files: how many files the held-out bytes come from: others than those to train on, or parts of the
            same ones.
    """

    train: UInt8[np.ndarray, " train_bytes"]
    held_out: UInt8[np.ndarray, " held_out_bytes"]
    train_files: int
    held_out_files: int

    @property
    def description(self) -> str:
        """What is held out, in words."""
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
    """The modules at the top of Python's standard library, in the order of their names: text that every machine has.

    Returns:
        The paths of the `*.py` that are not empty.

    Raises:
        FileNotFoundError: if this Python has none, as where its library is one zip file.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(folder.glob("*.py")) if path.stat().st_size]
    if len(files) < 2:
        raise FileNotFoundError(
            f"train: without a FILE, Python's standard library must be there as files *.py; got {len(files)} of them "
            f"in {folder}. Give a FILE of your own."
        )
    return files


def read_text(files: Sequence[Path]) -> Text:
    """Read files as one text and hold a fixed part of it out.

    Files are sorted by their path. Of ten or more, every tenth is held out; of fewer, the last tenth of each, so that
    what is held out is like what is trained on.

    Args:
        files: paths of files of any content; a file that is given twice is read once. None given: `standard_library`.

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
    """Cut a text into streams that lie side by side, each a contiguous part of it.

    Stream n goes on where stream n - 1 ends, whose last byte is its first: a byte is the target of the one before it.

    Args:
        text: the bytes.
        rows: the number of streams, N.

    Returns:
        `(length + 1, N)`: the inputs are all rows of it but the last, the targets all but the first. Up to N - 1 bytes
        at the end of the text are left out.

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
    """Refuse a text that is too short to train on and to evaluate on.

    Args:
        text: the text.
        batch: the number of streams to train on.
        window: the number of steps in a window.

    Raises:
        ValueError: if it is too short.
    """
    needed = batch * window + 1
    if text.train.size < needed:
        raise ValueError(
            f"train: the bytes to train on must be at least batch * window + 1 = {batch} * {window} + 1 = {needed}, "
            f"the held-out part not counted; got {text.train.size}. Give more text, or a smaller batch or window."
        )
    if text.held_out.size < 2:
        raise ValueError(
            f"train: the held-out bytes must be at least 2, a byte and the one to predict from it; got "
            f"{text.held_out.size}. Give more text: of fewer than ten files the last tenth of each is held out."
        )


def _count_files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _read(path: Path) -> UInt8[np.ndarray, " bytes"]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise type(error)(
            f"train: every FILE must be a file that can be read; got {path}: {error.strerror}. "
            "Check the path; of a directory, give the files in it."
        ) from error
    if not content:
        raise ValueError(f"train: every FILE must hold text; got {path}, which is empty. Leave it out.")
    return np.frombuffer(content, np.uint8)
