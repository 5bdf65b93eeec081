"""The described devices: their environments, and compiling for them."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal


Platform = Literal["gpu", "tpu"]
TITLES: dict[Platform, str] = {"gpu": "NVIDIA H200", "tpu": "TPU v5e"}
UNITS: dict[Platform, str] = {"gpu": "launches", "tpu": "estimated cycles"}
# Of `rnnscan.tuned_for` and `jax.export`.
LOWERED_FOR: dict[Platform, str] = {"gpu": "cuda", "tpu": "tpu"}

# What XLA asks of an H200 when it compiles for one that is there.
_H200 = """gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 } runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H200" """


def environment(platform: Platform) -> Mapping[str, str]:
    """The environment variables to compile for a described device. JAX reads them when it is imported."""
    if platform == "gpu":
        # Nothing tunes kernels without a device. Without command buffers each launch is an instruction.
        flags = "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer="
        return {
            "CUDA_VISIBLE_DEVICES": "-1",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # The plugin asks for a driver without it.
            "XLA_FLAGS": f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip(),
        }
    return {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # Nothing runs, so no device is shared.
    }


def is_here(platform: Platform, devices: Path = Path("/dev")) -> bool:
    """Whether this machine has such a device."""
    names = ("nvidia0",) if platform == "gpu" else ("accel0", "vfio/0")
    return any((devices / name).exists() for name in names)


def described_device(platform: Platform) -> Any:
    """The device to compile for."""
    from jax.experimental import topologies

    if platform == "gpu":
        described = topologies.get_topology_desc(platform="cuda", target_config=_H200, topology="1x1x1")
    else:
        described = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    return described.devices[0]


def lower(function: Callable[..., Any], types: Any, device: Any, platform: Platform) -> Any:
    """Trace and lower a function of arguments of these types, on a device."""
    import jax
    from jax.sharding import SingleDeviceSharding

    sharding = SingleDeviceSharding(device)
    there = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), types)
    traced = jax.jit(function).trace(*there)
    return traced.lower(lowering_platforms=(LOWERED_FOR[platform],))
