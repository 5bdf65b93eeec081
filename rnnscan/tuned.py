"""tuned_for(): choose the platform that the engine plans for."""

from contextlib import AbstractContextManager
from typing import Literal

from rnnscan.engine.costs.heuristics import BACKENDS, using


def tuned_for(platform: Literal["cpu", "gpu", "tpu"]) -> AbstractContextManager[None]:
    """A context in which `scan` and the functions on it plan for a platform.

    How a cell is best split differs by platform. A scan is split where JAX lowers it, for each platform of the program.
    What a derivative keeps is decided while it is traced, and so is which matrix states run in chunks: for the platform
    of the arrays, if they lie on devices or have a mesh; else for that of `jax.set_mesh`, of `jax.default_device`, or
    of JAX's default backend. Use the context where that is another platform than the program will run on, so that all
    choices are those of one: to lower for a GPU or TPU on a machine that has none, by `jax.export` or
    `jax.jit(...).lower(lowering_platforms=...)`, or to jit for arguments on a device of another platform. Results are
    equal up to rounding under every choice, on every platform.

    Args:
        platform: "cpu", "gpu" or "tpu".

    Returns:
        The context. It must be in force where the function is traced. The backward pass keeps the choice of its
        forward pass.

    Raises:
        ValueError: if the platform is not one of them.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.LSTM(8), jnp.ones((5, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> def run(params, xs):
        ...     return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]
        >>> with rs.tuned_for("tpu"):
        ...     exported = jax.export.export(jax.jit(run), platforms=["tpu"])(params, xs)
        >>> exported.platforms
        ('tpu',)
    """
    if platform not in BACKENDS:
        raise ValueError(f"tuned_for: `platform` must be one of {', '.join(BACKENDS)}; got {platform!r}.")
    return using(BACKENDS[platform])
