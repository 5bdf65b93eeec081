"""Finds a Python by its name: `python interpreters.py python3.13` prints its path, or nothing and fails.

It looks on PATH first, and then among the versions of pyenv: pyenv puts a `python3.13` on PATH that fails as long as no
such version is selected.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path


def find(name: str) -> str | None:
    """The path of an interpreter that runs, or None."""
    candidates = [shutil.which(name), *map(str, _of_pyenv(name))]
    return next((path for path in candidates if path is not None and _runs(path)), None)


def _of_pyenv(name: str) -> list[Path]:
    """The interpreters of this name that pyenv installed, the newest version first."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return sorted(root.glob(f"versions/*/bin/{name}"), key=_version, reverse=True)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.parents[1].name)]


def _runs(path: str) -> bool:
    return subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    path = find(sys.argv[1])
    if path is None:
        sys.exit(1)
    print(path)
