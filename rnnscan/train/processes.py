"""Training in several processes: how they join, agree, and stop together."""

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils


# Seconds without a sign of life after which JAX's service declares a process dead and ends all others. It also bounds
# the wait for the others at the end.
HEARTBEAT = 30

# Seconds to wait for all processes at the beginning.
JOIN_TIMEOUT = 60

# The errors that are raised in all processes as what they are.
KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (ImportError, OSError, TypeError, ValueError)}

Result = TypeVar("Result")


def join_processes(
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = JOIN_TIMEOUT,
) -> None:
    """Join the processes of a run, by `jax.distributed.initialize`. Call it before any other function of JAX.

    If a process dies, JAX ends all others within a minute. Its error has the numbers of dead tasks, which are those of
    processes; the leader is process 0. If not all have joined after `timeout` seconds, those that wait print an error
    and end with exit code 1: JAX cannot be interrupted while it waits.

    Args:
        coordinator: "HOST:PORT" of process 0, where all processes meet. None: the cluster's environment (Slurm, Open
            MPI, Kubernetes with the package `kubernetes`, Cloud TPU) says where, and everything else that is None.
        processes: the number of processes.
        process_id: the number of this process, from 0.
        timeout: the seconds to wait until all have joined. Set more if the machines start one after the other.

    Raises:
        ValueError: if a value is out of range, or None outside a cluster.
        RuntimeError: from JAX, if it has computed already, or the processes have joined already.

    Example:
        >>> join_processes("localhost:1234", processes=2, process_id=2)
        Traceback (most recent call last):
        ValueError: join_processes: `process_id` must be from 0 to 1; got 2. Number the processes from 0.
    """
    if coordinator is not None and not coordinator.rpartition(":")[2].isdecimal():
        raise ValueError(
            f"join_processes: `coordinator` must be HOST:PORT of process 0; got {coordinator!r}. Name a free port."
        )
    if processes is not None and processes < 1:
        raise ValueError(f"join_processes: `processes` must be at least 1; got {processes}.")
    if process_id is not None and not 0 <= process_id < (processes or process_id + 1):
        raise ValueError(
            f"join_processes: `process_id` must be from 0 to {(processes or 1) - 1}; got {process_id}. Number the "
            "processes from 0."
        )
    if timeout < 1:
        raise ValueError(f"join_processes: `timeout` must be at least 1 second; got {timeout}.")
    try:
        with _ending_after(timeout, coordinator, processes, process_id):
            jax.distributed.initialize(
                coordinator,
                processes,
                process_id,
                # An error of JAX would end this process with a stack trace, so it comes later than ours.
                initialization_timeout=timeout + 30,
                heartbeat_timeout_seconds=HEARTBEAT,
                shutdown_timeout_seconds=HEARTBEAT,
            )
    except ValueError as error:
        raise ValueError(
            "join_processes: `coordinator`, `processes` and `process_id` must be given where no cluster's environment "
            f"has them; got {coordinator!r}, {processes} and {process_id} ({error}). Give all three."
        ) from error


@contextmanager
def _ending_after(seconds: int, coordinator: str | None, processes: int | None, number: int | None) -> Iterator[None]:
    """End this process if the work takes longer."""
    place = "where the cluster's environment says" if coordinator is None else f"at {coordinator}"
    this = "this process" if number is None or processes is None else f"process {number} of {processes}"

    def end() -> None:
        print(
            f"Error: join_processes: all processes must join within {seconds} seconds; got fewer {place}, while {this} "
            "waited. Look for one that ended before it joined. Check that all processes reach this address and have "
            "different numbers. If they start slowly, wait longer: --join-timeout, or `timeout`.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def exchange(value: Any) -> list[Any]:
    """The values of all processes, in order.

    Args:
        value: the value of this process, which JSON can hold.
    """
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(text.size)).ravel()
    padded = np.zeros(max(sizes), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded).reshape(jax.process_count(), -1)
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def in_all(work: Callable[[], Result]) -> Result:
    """Run a function in every process. If it fails in one, all raise.

    Returns:
        This process's result.

    Example:
        >>> in_all(lambda: 1)
        1
    """
    if jax.process_count() == 1:
        return work()
    result, failure = _attempt(work)
    for number, error in enumerate(exchange(None if failure is None else _describe(failure))):
        if error is not None:
            raise failure or _like(error, number)
    assert failure is None
    return result  # type: ignore[return-value]


def in_first(work: Callable[[], Result]) -> Result:
    """Run a function in process 0. If it fails, all raise. All others wait for it.

    Args:
        work: a function whose result JSON can hold.

    Returns:
        The result of process 0.

    Example:
        >>> in_first(lambda: 1)
        1
    """
    if jax.process_count() == 1:
        return work()
    result, failure = (None, None) if jax.process_index() else _attempt(work)
    first_result, error = exchange((result, None if failure is None else _describe(failure)))[0]
    if error is not None:
        raise failure or _like(error, 0)
    return first_result


def check_agreement(**values: Any) -> None:
    """Check that all processes have the same values, the same rnnscan and the same JAX.

    Args:
        values: the values of this process by their names, which JSON can hold.

    Raises:
        ValueError: in all processes, if a value of one differs.
    """
    named = {name.replace("_", " "): value for name, value in values.items()} | code_versions()
    first, *rest = exchange(json.loads(json.dumps(named)))
    differing = {
        name: f"{name} {value} in process 0 and {other.get(name)} in process {number}"
        for number, other in reversed([*enumerate(rest, 1)])
        for name, value in first.items()
        if other.get(name) != value
    }
    if differing:
        raise ValueError(
            f"train: all processes must have the same options and the same code; got {'; '.join(differing.values())}. "
            "Start all with the same command in the same environment."
        )


def check_global(tree: Any, name: str) -> None:
    """Check that the arrays of a pytree are on devices of all processes. Without several processes, all are.

    Raises:
        ValueError: if an array, scalars aside, is on devices of this process only.
    """
    if jax.process_count() == 1:
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if np.ndim(leaf) and (not isinstance(leaf, jax.Array) or leaf.is_fully_addressable):
            raise ValueError(
                f"fit: with several processes, {name} must be on a mesh of all their devices; got "
                f"{name}{jax.tree_util.keystr(path)} on this process only. Make it with train.place_state, "
                "train.place_rows or jax.make_array_from_process_local_data."
            )


@cache
def code_versions() -> dict[str, str]:
    """The versions of rnnscan and JAX. That of rnnscan has a hash of its source files, because a checkout changes."""
    root = Path(__file__).parents[1]
    source = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        source.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    try:
        installed = version("rnnscan")
    except PackageNotFoundError:
        installed = "not installed"
    versions = {"rnnscan": f"{installed}, source {source.hexdigest()[:12]}"}
    versions |= {package: version(package) for package in ("jax", "jaxlib")}
    return {f"version of {package}": number for package, number in versions.items()}


@contextmanager
def waiting_for_the_verdict() -> Iterator[None]:
    """After an error of JAX wait for its service, which ends this process and names the dead one, if one has died."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # XLA's errors begin with a code. Those of collectives outside of `jax.jit` are a ValueError.
        if jax.process_count() > 1 and re.match("[A-Z_]+: ", str(error)):
            print(
                f"rnnscan: process {jax.process_index()} of {jax.process_count()} got an error of XLA, as it does if "
                f"another process has died: {str(error).splitlines()[0]}\nIf so, JAX ends this process within "
                f"{2 * HEARTBEAT} seconds, and names the dead by number: 'The following tasks are unhealthy', or "
                "'Task 1 heartbeat timeout'; 'the leader' is process 0. Resume the run from its last checkpoint.",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(2 * HEARTBEAT)
        raise


def _attempt(work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _describe(error: Exception) -> tuple[str, str]:
    return next((name for name, kind in KINDS.items() if isinstance(error, kind)), "RuntimeError"), str(error)


def _like(error: Sequence[str], number: int) -> Exception:
    """An error of another process."""
    kind, message = error
    return KINDS.get(kind, RuntimeError)(f"in process {number}: {message}")
