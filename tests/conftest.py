"""What all tests share."""

import os


# XLA logs kilobytes for each program that it reads from the cache below. Only the import of jax reads this, so the
# programs that tests start still show what XLA has to say.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import jax


del os.environ["TF_CPP_MIN_LOG_LEVEL"]

import dataclasses
import functools
import gc
import re
import sys
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import ir_contexts
import remat3
from summary import (  # noqa: F401  Hooks of pytest.
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tiers import variants
from xla_flags import flags


# Before jax makes its backend. Two devices, for shard_map.
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), flags(devices=2)])
# Tests compile the same programs again and again: in one process, in the other, in each part of `make test`. This is
# not for the programs that tests start: one that is killed would leave half a file.
jax.config.update("jax_compilation_cache_dir", str(Path(sys.prefix) / ".compiled"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
ir_contexts.share()
# No test reads from which line of the source an operation comes; writing it down is a part of lowering.
jax.config.update("jax_traceback_in_locations_limit", 0)


# The goldens need torch, and make what the tests read. What tests share holds none.
collect_ignore = ["goldens", "support"]


def pytest_collection_finish() -> None:
    """Collect garbage less often: tracing makes many objects that live on, and collecting took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure() -> None:
    """Freeze the objects that are left: pytest collects garbage five times at its end, which took a second or more."""
    gc.freeze()


def _without_early_remat3() -> Generator[None, Any, Any]:
    """Skip what cannot be under JAX_REMAT3=1: with jax 0.10.2 what rnnscan refuses, and names under `jax.vmap`.

    With every jax `jax.checkpoint` gives tangents to what has none (docs/versions.md).
    """
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        text = "".join(traceback.format_exception(error))
        refused = re.search(r"the time has a tangent|Pure callbacks do not support JVP", text)
        if refused is None and jax.__version_info__ < (0, 11):
            refused = re.search(r"needs? jax 0\.11 or newer|CheckpointName'> must implement `batch`", text)
        if not remat3.IS_ON or refused is None:
            raise
        pytest.skip(f"under JAX_REMAT3=1: {refused.group()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """The fixtures of a test."""
    return (yield from _without_early_remat3())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """The test."""
    return (yield from _without_early_remat3())


# Where small loops run as one kernel, as they do for users. Other tests show with small steps what the engine makes of
# large ones. With SMALL_LOOPS=1 they run as one kernel in all tests that have no mark `large_loops`.
_AS_USERS = (
    *("rnnscan", "tests/docs", "tests/examples", "tests/notebooks", "tests/cli", "tests/engine/one_kernel"),
    "tests/train/test_kills.py",  # It compares with a process of its own.
)


@pytest.fixture(autouse=True)
def small_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the small loops of a CPU as one kernel with all residuals kept, or as larger ones run."""
    from rnnscan.engine.costs import heuristics  # Not before run-time type checks are set up.

    path = request.path.relative_to(request.config.rootpath).as_posix()
    as_users = os.environ.get("SMALL_LOOPS") == "1" or path.startswith(_AS_USERS)
    is_small = as_users and request.node.get_closest_marker("large_loops") is None
    choices = heuristics.BACKENDS["cpu"]
    residuals = choices.small_residuals if is_small else 0
    chosen = dataclasses.replace(choices, one_kernel=is_small, small_residuals=residuals)
    monkeypatch.setitem(heuristics.BACKENDS, "cpu", chosen)


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=variants(["lax", "auto"], ["auto"]))
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with either engine, in `make test` with the lax engine in few."""
    import rnnscan  # Not before run-time type checks are set up, which is after this file is read.

    monkeypatch.setattr(rnnscan, "scan", functools.partial(rnnscan.scan, engine=request.param))
    return str(request.param)
