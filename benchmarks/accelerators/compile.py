"""Compile the rows of the workloads for a described device, and read off their figures."""

import os
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import jax

from benchmarks.accelerators import workloads
from benchmarks.accelerators.choices import OWN, compiles_long, tuned
from benchmarks.accelerators.figures import Cache, Figures, figures_of
from benchmarks.accelerators.tables import NOT_COMPILED, Row, Tables
from benchmarks.accelerators.target import Platform, described_device, lower


def compile_all(
    platform: Platform, names: Iterable[str], cache: Cache, report: Callable[[str], None], *, only_cached: bool = False
) -> Tables:
    """Compile what the cache does not have, or leave it out."""
    device = described_device(platform)
    tables = Tables(versions_of(platform))
    for name in names:
        rows = tables.rows.setdefault(name, {})
        for row, scan in workloads.scans(name).items():
            report(f"{name}: {row}")
            found = []
            for make in (workloads.forward, workloads.trained):
                function, types = make(name, scan), workloads.types(name)
                with tuned(row, platform):
                    found.append(_figures(function, types, device, platform, cache, only_cached))
            rows[row] = Row(*found)
        trained = tables.trained[name]
        for row in OWN:
            if "plain" in trained and compiles_long(trained, row):
                report(f"{name}: {row}, without what takes long to compile")
                function, types = workloads.trained(name, workloads.scans(name)[row]), workloads.types(name)
                with tuned(row, platform, without=True):
                    one = _figures(function, types, device, platform, cache, only_cached)
                if isinstance(one, Figures):
                    tables.without.setdefault(name, {})[row] = one
    return tables


def versions_of(platform: Platform) -> str:
    """The versions that decide what is compiled."""
    compiler = "jax-cuda12-plugin" if platform == "gpu" else "libtpu"
    return ", ".join(f"{package} {version(package)}" for package in ("jax", "jaxlib", compiler))


def _processor_seconds() -> float:
    """The time of all processors for this process and the assemblers that it has waited for.

    By the clock, other programs of the machine made the same compilation ten times as long.
    """
    return sum(os.times()[:4])


def _compiled(lowered: Any, platform: Platform) -> Any:
    """The compiled program. Untuned, XLA finds no tiles for some products; cuBLAS takes those."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError:
        if platform != "gpu":
            raise
        return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})


def _figures(
    function: Any, types: Any, device: Any, platform: Platform, cache: Cache, only_cached: bool
) -> Figures | str:
    begin = _processor_seconds()
    lowered = lower(function, types, device, platform)
    digest = cache.digest(lowered.as_text(), versions_of(platform), os.environ.get("XLA_FLAGS", ""))
    found = cache.get(digest)
    if found is None and only_cached:
        return NOT_COMPILED
    if found is None:
        try:
            compiled = _compiled(lowered, platform)
        except jax.errors.JaxRuntimeError as error:
            found = str(error).splitlines()[0]
        else:
            seconds = _processor_seconds() - begin
            memory = compiled.memory_analysis()
            temporary, host = memory.temp_size_in_bytes, memory.host_temp_size_in_bytes
            found = figures_of(compiled.as_text(), temporary, seconds, platform, host=host)
        cache.put(digest, found)
    return found
