"""Plant NaN or inf in a name of a cell: at a step and row, in values, cotangents or tangents."""

from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan import naming
from rnnscan._util.trace_context import trace_context


@jax.custom_vjp
def plant_backward(value: Any, divisor: Any) -> Any:
    """The value; its cotangent is divided."""
    return value


plant_backward.defvjp(
    lambda value, divisor: (value, divisor), lambda divisor, ct: (ct / divisor, jnp.zeros_like(divisor))
)


@jax.custom_jvp
def plant_tangent(value: Any, divisor: Any) -> Any:
    """The value; its tangent is divided."""
    return value


plant_tangent.defjvp(lambda primals, tangents: (primals[0], tangents[0] / primals[1]))

DIRECTIONS = ("forward", "backward", "tangent")


class Planted:
    """A cell whose inputs are `(x, plants)`.

    `plants[direction][name]` is `(N,)`: 0 plants nothing, 1 an infinity or NaN, and 2 NaN in values.
    """

    def __init__(self, cell: Any, directions: tuple[str, ...] = ("forward", "backward")) -> None:
        self.cell, self.directions = cell, directions

    def __call__(self, params: Any, carry: Any, x: Any) -> Any:
        x, plants = x
        with _planting(plants):
            return self.cell(params, carry, x)

    def initial_carry(self, x: Any) -> Any:
        return self.cell.initial_carry(x[0])

    def plants(self, steps: int, rows: int) -> Any:
        """Plants of nothing."""
        return {way: {name: jnp.zeros((steps, rows)) for name in self.cell.names} for way in self.directions}


@contextmanager
def _planting(plants: Any) -> Any:
    outer = trace_context().reader

    class Planter:
        depth = 0 if outer is None else outer.depth

        def read(self, leaf: Any, label: str) -> Any:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return leaf

            def of(way: str) -> Any:
                divisor = jax.lax.stop_gradient(1 - plants[way][label])
                return divisor.reshape(divisor.shape + (1,) * (leaf.ndim - 1)).astype(leaf.dtype)

            if "forward" in plants:
                leaf = leaf + jnp.log(of("forward"))
            if "tangent" in plants:
                leaf = plant_tangent(leaf, of("tangent"))
            with naming.reading(outer or self):
                leaf = leaf if outer is None else outer.read(leaf, label)
            if "backward" in plants:
                leaf = plant_backward(leaf, of("backward"))
            return leaf

        def forget(self) -> None:
            pass

    with naming.reading(Planter()):
        yield


def own_name(report):
    """The name in its cell, without the path of the cell."""
    return report.name.rpartition("/")[2]
