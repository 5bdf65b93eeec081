"""Programs of tests that need a process of their own: the number of devices is set before JAX starts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def report_of(program: str, asked: Any = None, *, flags: Sequence[str] = ()) -> Any:
    """What a program of this folder prints, as JSON. It runs once for the same question.

    Args:
        program: the name of its file.
        asked: its argument, which it gets as JSON; None: it takes none.
        flags: of the Python that runs it.
    """
    return _report(program, "" if asked is None else json.dumps(asked), tuple(flags))


@cache
def _report(program: str, asked: str, flags: tuple[str, ...]) -> Any:
    support = Path(__file__).parent
    command = [sys.executable, *flags, str(support / program), *filter(None, [asked])]
    environment = {**os.environ, "PYTHONPATH": str(support.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def quick_or_slow(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """Parameters of a test, each with whether it is quick: one process finds all quick ones, another the slow ones.

    Args:
        quick: what `make test-pages` runs; a tuple is several parameters.
        slow: what `make test-all` runs too.
    """
    return [
        *((*_parameters(one), True) for one in quick),
        *(pytest.param(*_parameters(one), False, marks=pytest.mark.slow) for one in slow),
    ]


def _parameters(one: Any) -> tuple[Any, ...]:
    return one if isinstance(one, tuple) else (one,)
