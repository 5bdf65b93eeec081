"""A pytest plugin that runs a project's `lax.scan` as `rnnscan.scan`, and writes what each test did.

The environment says what it does:
    SUITES_MODE: "plain" only counts calls; "default" and "all" replace them, with `Memory()` or `recompute="all"`.
    SUITES_RECORDS: a folder. Each process writes a file of JSON lines, one when a test starts and one when it ends.
    SUITES_TESTS: a JSON list of node ids; the other tests are deselected. Without it all tests run.
    SUITES_ENDED: a JSON list of node ids that are deselected, because an earlier process wrote their ends.
    SUITES_SECONDS: the time limit of a test. A test that exceeds it ends its process, which pytest-xdist replaces.

pytest loads it as `PYTEST_PLUGINS` says, before any conftest.py, so that `from jax.lax import scan` binds the
replacement.
"""

import functools
import json
import os
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import jax
import pytest
from jax import lax

import rnnscan as rs


with warnings.catch_warnings():  # Of the installed jax, which a project may have as errors.
    warnings.simplefilter("ignore", rs.JaxVersionWarning)
    MEMORIES = {"default": rs.Memory(), "all": rs.Memory(recompute="all")}
MODE = os.environ["SUITES_MODE"]
RECORDS = Path(os.environ["SUITES_RECORDS"])
SELECTED = os.environ.get("SUITES_TESTS")
ENDED = os.environ.get("SUITES_ENDED")
SECONDS = float(os.environ["SUITES_SECONDS"]) if "SUITES_SECONDS" in os.environ else None

lax_scan = lax.scan
calls = 0


@functools.wraps(lax_scan)
def scan(f, init, xs=None, length=None, reverse=False, unroll=1, _split_transpose=False):
    """Run `lax.scan`, or `rs.scan` in its place for a project's call."""
    global calls
    options = {"length": length, "reverse": reverse, "unroll": unroll}
    caller = sys._getframe(1).f_globals.get("__name__", "")
    # A transformation of JAX that calls `partial(lax.scan, step)` is a project's call, by the step's module.
    if _is_inside(caller, "rnnscan") or (_is_inside(caller, "jax") and _is_inside(_module_of(f), "jax")):
        return lax_scan(f, init, xs, **options, _split_transpose=_split_transpose)
    calls += 1
    if MODE == "plain":
        return lax_scan(f, init, xs, **options, _split_transpose=_split_transpose)
    return rs.scan(cell_of(f), None, init, xs, **options, memory=MEMORIES[MODE])


lax.scan = jax.lax.scan = scan


def _is_inside(module, package):
    return module == package or module.startswith(f"{package}.")


def _module_of(step):
    while isinstance(step, functools.partial):
        step = step.func
    return getattr(step, "__module__", None) or ""


@dataclass(frozen=True)
class StepCell:
    """A step that is no plain function as a cell that compares as the step does."""

    step: object

    def __call__(self, params, carry, x):
        return self.step(carry, x)


def cell_of(step):
    """The cell of a step. Equal steps have equal cells, because `lax.scan` caches programs by the step."""
    if not isinstance(step, FunctionType):
        return StepCell(step)
    cell = vars(step).get("_rnnscan_cell")
    # `functools.wraps` copies the attributes of the function that it wraps.
    if cell is None or cell.step is not step:
        # The step keeps its cell alive and the cell its step, so both live as long as the step.
        cell = lambda params, carry, x: step(carry, x)  # noqa: E731
        cell.step, cell.__name__, cell.__qualname__ = step, step.__name__, step.__qualname__
        step._rnnscan_cell = cell
    return cell


# ---- records


def pytest_collection_modifyitems(config, items):
    """Keep the selected tests that have not ended."""
    selected = _read(SELECTED) if SELECTED else {item.nodeid for item in items}
    selected -= _read(ENDED) if ENDED else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in selected])
    items[:] = [item for item in items if item.nodeid in selected]


def _read(file):
    return set(json.loads(Path(file).read_text()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Write that a test starts. The report of its teardown writes its end, or the time limit does."""
    global calls
    calls = 0
    item.stash[_outcome] = {"outcome": "passed", "error": "", "seconds": 0.0}
    _write({"test": item.nodeid})
    with _time_limit(item.nodeid):
        return (yield)


@contextmanager
def _time_limit(test):
    timer = threading.Timer(SECONDS or 0, _stop, [test])
    timer.daemon = True
    if SECONDS is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _stop(test):
    error = f"it took more than {SECONDS:g} seconds"
    _write({"test": test, "calls": calls, "outcome": "stopped", "error": error, "seconds": SECONDS})
    os._exit(1)  # An exception would wait for the end of a compilation.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Gather the outcomes of setup, call and teardown."""
    report = yield
    outcome = item.stash[_outcome]
    outcome["seconds"] += report.duration
    if report.failed:
        outcome |= {"outcome": "failed", "error": _first_line(report, call)}
    elif report.skipped and outcome["outcome"] == "passed":
        outcome["outcome"] = "skipped"
    item.stash[_outcome] = outcome
    if report.when == "teardown":
        _write({"test": item.nodeid, "calls": calls, **outcome})
    return report


_outcome = pytest.StashKey()


def _first_line(report, call):
    if call.excinfo is None:
        return str(report.longrepr).splitlines()[-1]
    text = str(call.excinfo.value).strip().splitlines()
    return f"{call.excinfo.typename}: {text[0] if text else ''}"


def _write(record):
    with (RECORDS / f"{os.getpid()}.jsonl").open("a") as out:
        out.write(json.dumps(record) + "\n")
