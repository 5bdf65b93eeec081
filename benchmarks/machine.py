"""The machine and the versions of a measurement."""

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax


LOAD_UNKNOWN = "The load of other programs was not recorded."
PACKAGES = ("rnnscan", "jax", "jaxlib", "flax", "dm-haiku", "equinox", "keras", "torch", "onnxruntime")


def describe_machine(precision: str | None) -> dict[str, str]:
    """Machine, versions, precision of products if it matters, and date, without the machine's name."""
    return {
        "machine": f"{_processor()}, {processors()} processors, {platform.system()}{_accelerator()}",
        "versions": f"Python {platform.python_version()}, {', '.join(_versions())}",
        **({} if precision is None else {"precision": precision}),
        "date": datetime.date.today().isoformat(),
    }


def with_condition(text: str, machine: Mapping[str, str], load: str = "") -> str:
    """A page that says first with which versions, when and beside which load its figures were measured.

    Args:
        text: the page.
        machine: as `describe_machine` returns it.
        load: a sentence on the load of other programs; empty if it does not matter.
    """
    versions = dict(one.rpartition(" ")[::2] for one in machine["versions"].split(", "))
    title, _, rest = text.partition("\n\n")
    condition = f"Measured with rnnscan {versions['rnnscan']} and jax {versions['jax']} on {machine['date']}. {load}"
    return f"{title}\n\n> {condition.strip()}\n\n{rest}"


def version_of(checkout: Path) -> str:
    """The commit of a checkout and its date; "unknown" for a folder that is no checkout of its own."""
    if not (checkout / ".git").exists():
        return "unknown"
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    vectors = [name for name, flag in (("AVX-512", "avx512f"), ("AMX", "amx_tile")) if flag in flags]
    return " with ".join([models[0] if models else platform.machine(), *filter(None, [" and ".join(vectors)])])


def _accelerator() -> str:
    return "" if jax.default_backend() == "cpu" else f", {jax.devices()[0].device_kind}"


def _versions() -> list[str]:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found
