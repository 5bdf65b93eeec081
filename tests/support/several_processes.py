"""Processes of a run that join over loopback."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xla_flags import flags


# Of the tests, in seconds: JAX's service declares a process dead after so long.
HEARTBEAT = 6
ROOT = Path(__file__).parents[2]

# The command with this heartbeat.
COMMAND = f"""
import warnings
warnings.filterwarnings("ignore", "jaxlib .* has known bugs")  # Before `main` does it.
from rnnscan.cli import main
from rnnscan.train import processes
processes.HEARTBEAT = {HEARTBEAT}
main()
"""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return int(server.getsockname()[1])


def start(command: Sequence[Any], folder: Path, number: int, *, code: Path = ROOT) -> subprocess.Popen[str]:
    """Start a Python with one device, whose output goes to files in a folder.

    Args:
        command: the arguments of Python.
        folder: where `out.NUMBER` and `err.NUMBER` are written.
        number: that of the process.
        code: the folder of the package `rnnscan`.
    """
    environment = {**os.environ, "XLA_FLAGS": flags(devices=1), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(code)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # JAX's service says in its log who has died.
    folder.mkdir(exist_ok=True)
    with (folder / f"out.{number}").open("w") as out, (folder / f"err.{number}").open("w") as err:
        return subprocess.Popen(
            [sys.executable, *map(str, command)], cwd=code, env=environment, stdout=out, stderr=err, text=True
        )


def wait_until(condition: Callable[[], bool], running: Sequence[subprocess.Popen[str]], seconds: float = 120) -> None:
    """Wait for a condition while all processes run."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        assert all(process.poll() is None for process in running), "a process ended"
        time.sleep(0.02)


def end_all(processes: Sequence[subprocess.Popen[str]], seconds: float = 60) -> list[int]:
    """Wait for the end of all processes, and return their exit codes. What runs longer is killed."""
    try:
        end = time.monotonic() + seconds
        return [process.wait(max(0.0, end - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()


def names_the_dead(folder: Path, survivor: int, dead: int) -> bool:
    """Whether the log of a process names the one that died."""
    log = (folder / f"err.{survivor}").read_text()
    if dead == 0:
        return "the leader" in log
    return f"unhealthy (stopped sending heartbeats):\n{dead}\n" in log or f" Task {dead} heartbeat timeout" in log
