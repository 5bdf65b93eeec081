"""The flags of XLA for tests: what compiles quickest, because they compile many programs and run each once.

It takes less than half the time, with XLA's own passes, and so its memory analysis, as they are (docs/decisions.md).
"""

from importlib.metadata import version


def flags(devices: int) -> str:
    """For `XLA_FLAGS`, before JAX makes its backend, with so many devices."""
    chosen = [
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
    if version("jaxlib").startswith("0.10."):  # jax 0.11 knows it no more.
        chosen.append("--xla_cpu_use_fusion_emitters=false")
    return " ".join(chosen)
