"""A scan whose rows lie on two devices."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


MODES = ["auto", "explicit", "shard_map"]
_SPECS = PartitionSpec(), PartitionSpec("data"), PartitionSpec(None, "data")


@contextmanager
def on_two_devices(mode: str, run: Callable[..., Any], arguments: Any) -> Iterator[tuple[Callable[..., Any], Any]]:
    """Within a mesh of two devices: `run`, and its parameters, carry and inputs, placed there.

    Args:
        mode: how JAX learns of the devices, one of `MODES`.
        run: called with parameters, a carry `(N, ...)` and inputs `(T, N, ...)`; returns a carry and outputs.
        arguments: what `run` is called with.
    """
    kind = AxisType.Explicit if mode == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    if mode == "shard_map":
        run = jax.shard_map(run, mesh=mesh, in_specs=_SPECS, out_specs=_SPECS[1:])
    with jax.set_mesh(mesh):
        yield run, jax.device_put(arguments, tuple(NamedSharding(mesh, spec) for spec in _SPECS))
