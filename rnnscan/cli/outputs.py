"""Files that a command writes: whole, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rnnscan.cli.options import readable_errors


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
            if path.is_dir():
                raise IsADirectoryError(
                    f"rnnscan: --out must be a file; got the folder {str(path)!r}. Use another --out."
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = unfinished.open("wb")
        with opened:
            yield opened
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
