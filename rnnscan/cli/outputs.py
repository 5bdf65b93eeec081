"""Files that a command writes: checked before the work, and written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rnnscan.cli.options import readable_errors


def check_file(file: Path, option: str) -> None:
    """Reject a file that cannot be written, before any work.

    Args:
        file: the file. Its folder may be missing.
        option: the option that names it, for messages.

    Raises:
        OSError: if it is a folder, or its folder is not one, or this user may not write there.
    """
    if file.is_dir():
        raise IsADirectoryError(
            f"rnnscan: {option} must be a file; got the folder {str(file)!r}. Use another {option}."
        )
    folder = next(each for each in file.absolute().parents if each.exists())
    if not folder.is_dir():
        raise NotADirectoryError(
            f"rnnscan: {option} must be in a folder; got {str(file)!r}, and {str(folder)!r} is a file. Use another "
            f"{option}."
        )
    place = file if file.exists() else folder
    if not os.access(place, os.W_OK):
        raise PermissionError(
            f"rnnscan: {option} must be a file that you may write; got {str(file)!r}, and no permission to write "
            f"{str(place)!r}. Use another {option}."
        )


def check_plot(file: Path | None) -> None:
    """Reject a picture of measurements that cannot be drawn, before any work.

    Raises:
        ImportError: if the extra `plot` is not installed.
        OSError: if the file cannot be written.
        ValueError: if matplotlib cannot write files with this ending.
    """
    if file is not None:
        from rnnscan.insight.picture import check_picture_file

        check_picture_file(file)
        check_file(file, "--plot")


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file under another name, and rename it at the end. After an error or Ctrl-C the old file is there.

    A file that cannot be opened is shown as a user's error.

    Args:
        path: the file. Its folder is created when needed.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with readable_errors():
            check_file(path, "--out")
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = unfinished.open("wb")
        with opened:
            yield opened
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
