"""What all tests share."""

import os
from collections.abc import Generator, Iterator
from typing import Any


# Before jax is imported. Two devices, for shard_map. The least optimization of machine code, because the tests compile
# many programs and run each once: it takes a quarter off their time and leaves XLA's own passes, and so its memory
# analysis, as they are.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=2",
        "--xla_backend_optimization_level=0",
    ]
)

import jax
import pytest


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
