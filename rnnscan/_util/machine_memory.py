"""The memory of the machine."""

import os

import jax


def machine_bytes() -> int | None:
    """The memory of the device, or of this machine if the device is a CPU; None if the system does not say."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    if limit is not None:
        return int(limit)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows, or a system without these names.
        return None
