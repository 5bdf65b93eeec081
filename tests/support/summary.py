"""One line about a run of pytest, for the end of `make test`: what ran, and how many slow tests did not.

`make` names the part in TEST_PART and the file in TEST_SUMMARY. Without them nothing is written.
"""

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest


_slow = 0
_began = time.time()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count the slow tests that would have run if they were not slow."""
    global _slow
    config = items[0].config
    known = re.findall(r"^\w+", "\n".join(config.getini("markers")), re.MULTILINE)
    for item in items:
        marks = {mark: bool(item.get_closest_marker(mark)) for mark in known}
        asked_for = eval(config.getoption("markexpr") or "True", {}, {**marks, "slow": False})
        _slow += bool(asked_for and item.get_closest_marker("slow"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist collects the tests, so it tells the process that it works for."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["slow"] = _slow


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker collects the same."""
    global _slow
    _slow = getattr(node, "workeroutput", {}).get("slow", _slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the line, once, and not in the workers."""
    if "TEST_SUMMARY" not in os.environ or hasattr(terminalreporter.config, "workeroutput"):
        return
    kinds = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    counts = {kind: len(terminalreporter.stats.get(kind, ())) for kind in kinds}
    ran = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "no test"
    left = f"; not run: {_slow} slow ones" if _slow else ""
    with Path(os.environ["TEST_SUMMARY"]).open("a") as file:
        file.write(f"{os.environ['TEST_PART']}: {ran} in {time.time() - _began:.0f} s{left}\n")
