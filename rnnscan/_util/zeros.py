"""Zeros with the sharding of an array."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def zeros_sharded_like(x: Any, shape: Sequence[Any], dtype: Any = None) -> Any:
    """Zeros with the sharding of `x` on their common leading axes.

    Under `jax.shard_map` they vary over the mesh as `x` does; `jnp.zeros` does not. In a jitted function the axes of an
    automatic mesh have no sharding while tracing, and XLA chooses.

    Args:
        x: an array `(N, ...)`; its values do not matter.
        shape: the shape of the zeros, `(N, ...)`.
        dtype: their dtype; None: that of `x`.
    """
    spec = [
        axes if size == own_size else None
        for axes, size, own_size in zip(_spec(x)[: max(0, x.ndim - 1)], shape, x.shape, strict=False)
    ]
    return _zeros(x, shape, dtype, spec)


def zeros_of_step(xs: Any) -> Any:
    """Zeros with the shape and sharding of one step of `(T, ...)`, also for T = 0."""
    return _zeros(xs, xs.shape[1:], None, _spec(xs)[1:])


def zeros_of_type(aval: Any, length: int) -> Any:
    """A stack of zeros for values of a type, with its sharding and the axes over which `shard_map` varies it.

    Args:
        aval: the type of one value.
        length: the length of the stack.
    """
    return _zeros_of_type(aval, (length, *aval.shape), [None, *aval.sharding.spec])


def zeros_of_value(aval: Any) -> Any:
    """Zeros for one value of a type, as in `zeros_of_type`."""
    return _zeros_of_type(aval, tuple(aval.shape), [*aval.sharding.spec])


def _zeros_of_type(aval: Any, shape: tuple[Any, ...], spec: Sequence[Any]) -> Any:
    sharding = NamedSharding(aval.sharding.mesh, PartitionSpec(*spec)) if any(spec) else None
    zeros = lax.full(shape, 0, aval.dtype, sharding=sharding)
    varying = tuple(sorted(aval.manual_axis_type.varying))
    return lax.pcast(zeros, varying, to="varying") if varying else zeros


def _zeros(x: Any, shape: Sequence[Any], dtype: Any, spec: Sequence[Any]) -> Any:
    sharding = _sharding(x)
    if sharding is not None:
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*spec[: len(shape)])) if any(spec) else None
    return lax.full_like(x, 0, dtype=dtype, shape=tuple(shape), sharding=sharding)


def _spec(x: Any) -> list[Any]:
    """The axes of the mesh that each axis of an array is sharded over."""
    sharding = _sharding(x)
    spec = [] if sharding is None else [*sharding.spec]
    return [*spec, *[None] * (x.ndim - len(spec))]


def _sharding(x: Any) -> NamedSharding | None:
    # The type of a concrete array leaves out the axes of an automatic mesh.
    is_traced = isinstance(x, jax.core.Tracer)
    sharding = jax.typeof(x).sharding if is_traced else getattr(x, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None
