"""The k largest values of each row, also where devices share the rows."""

import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jaxtyping import Array, Float, Int

from rnnscan._util.varying import known_mesh


def top_k(values: Float[Array, "*batch n"], k: int) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """`lax.top_k`. On a mesh of several devices it sorts the rows, because XLA gathers all rows for a `top_k`.

    Example:
        >>> [found.tolist() for found in top_k(jnp.array([1.0, 3.0, 2.0, 3.0]), 2)]
        [[3.0, 3.0], [1, 3]]
    """
    mesh = known_mesh([values])
    if mesh is None or not any(
        size > 1 and kind == AxisType.Auto for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    ):
        largest, places = lax.top_k(values, k)
        return largest, places
    order = jnp.where(jnp.isnan(values), -jnp.inf, -values)
    places = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    _, sorted_values, sorted_places = lax.sort((order, values, places), num_keys=1, is_stable=True)
    return sorted_values[..., :k], sorted_places[..., :k]
