"""What all tests share."""

import os
from collections.abc import Generator, Iterator
from importlib.metadata import version
from typing import Any

import jax
import pytest


# Before jax makes its backend. Two devices, for shard_map. And what compiles quickest, because the tests compile many
# programs and run each once: less than half the time, with XLA's own passes, and so its memory analysis, as they are
# (docs/decisions.md). jax 0.11 knows the last flag no more.
FLAGS = [
    "--xla_force_host_platform_device_count=2",
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
]
if version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])


# The goldens need torch, and make what the tests read. What tests share holds none.
collect_ignore = ["goldens", "support"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` all but some variants, from the first to the last, of a test that is marked `thin`."""
    variants: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thin") and not item.get_closest_marker("slow"):
            variants.setdefault((item.path, getattr(item, "cls", None), item.originalname), []).append(item)
    for together in variants.values():
        (count,) = together[0].get_closest_marker("thin").args
        stay = {round(place * (len(together) - 1) / max(1, count - 1)) for place in range(count)}
        for place, item in enumerate(together):
            if place not in stay:
                item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Skip what rnnscan itself refuses under JAX_REMAT3=1 with a jax that is too old for it."""
    try:
        return (yield)
    except NotImplementedError as error:
        if os.environ.get("JAX_REMAT3") == "1" and "need jax 0.11 or newer" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield
