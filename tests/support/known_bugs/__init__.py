"""The known bugs of JAX and XLA of docs/versions.md, each with a program that shows it.

A program of this folder prints "right" or "wrong" in its last line. A bug also shows where a signal ends the program,
or where it does not end.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

from pages import table


HERE = Path(__file__).parent
PROGRAMS = sorted(path.name for path in HERE.glob("[a-z]*.py"))
# The slowest takes 4 s.
MOST_SECONDS = 120


@dataclass(frozen=True)
class Bug:
    """A row of the table.

    Attributes:
        program: the name of its file.
        where: the platform, or the variable of the environment under which it shows.
        versions: those that have it; None: not known.
    """

    program: str
    where: str
    versions: Requirement | None

    def is_stated(self) -> bool:
        """Whether the table says that what is installed has the bug."""
        return self.versions is not None and version(self.versions.name) in self.versions.specifier

    def shows(self) -> bool:
        """Whether what is installed has the bug. Flags of this process are not passed on."""
        inherited = {name: value for name, value in os.environ.items() if not re.fullmatch(r"XLA_FLAGS|JAX_\w+", name)}
        flag = re.fullmatch(r"`(JAX_\w+)=1`", self.where)
        flags = {flag[1]: "1"} if flag else {} if self.where == "GPU" else {"JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(
                [sys.executable, HERE / self.program],
                env=inherited | flags,
                capture_output=True,
                text=True,
                check=False,
                timeout=MOST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return True
        if done.returncode < 0:
            return True
        assert not done.returncode, done.stderr
        return {"right": False, "wrong": True}[done.stdout.splitlines()[-1]]


def known_bugs() -> list[Bug]:
    """The rows of the table of docs/versions.md."""
    bugs = []
    for _, where, versions, _, _, program in table("versions.md", "bug"):
        stated = re.fullmatch(r"`([^`]+)`", versions)
        bugs.append(Bug(program.strip("`"), where, Requirement(stated[1]) if stated else None))
    return bugs


def check(bug: Bug, *, shows: bool) -> None:
    """Reject a table that is not what the installed versions do."""
    installed = f"jax {version('jax')} with jaxlib {version('jaxlib')}"
    if bug.is_stated() and not shows:
        raise AssertionError(
            f"The bug of {bug.program} is gone from {installed}. Narrow its versions, {bug.versions}, in "
            "docs/versions.md, and look whether rnnscan still needs what it does about it."
        )
    if shows and not bug.is_stated():
        raise AssertionError(
            f"The bug of {bug.program} is in {installed}. Add it to its versions, {bug.versions}, in docs/versions.md."
        )
