"""What all tests share."""

import os
from collections.abc import Iterator


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

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield
