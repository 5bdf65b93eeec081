"""Sums over rows that are sharded over devices.

A parameter's gradient is a sum over steps and rows. If each chunk summed over all rows, the loop over chunks would
contain an all-reduce. So the loop carries a sum for each part of the rows, `(parts, ...)`, sharded like the rows. One
reduction per parameter follows the loop.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd, prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from rnnscan._util.messages import is_count
from rnnscan._util.varying import known_mesh
from rnnscan.engine.analysis.linear_sums import summed_operands
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.units.mesh import batch_devices
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.program import Atom, Equation, Value


@dataclass(frozen=True)
class ShardedRows:
    """The rows of a batch, in one part for each device.

    Attributes:
        count: the number of rows.
        parts: the number of parts, of equal size.
        mesh: the mesh, if the rows are sharded over its explicit axes. Else only XLA knows their sharding.
        axes: these explicit axes, as in a `PartitionSpec`.
    """

    count: int
    parts: int
    mesh: Any = None
    axes: Any = None

    def split(self, value: Any, axis: int) -> Any:
        """Cut an axis of rows into parts, and move the axis of parts to the front."""
        shape = (*value.shape[:axis], self.parts, self.count // self.parts, *value.shape[axis + 1 :])
        if self.mesh is None:
            return jnp.moveaxis(value.reshape(shape), axis, 0)
        spec = [*jax.typeof(value).sharding.spec]
        if spec[axis] != self.axes:
            spec[axis] = self.axes
            value = jax.reshard(value, self._sharding(spec))
        spec.insert(axis + 1, None)
        return jnp.moveaxis(lax.reshape(value, shape, out_sharding=self._sharding(spec)), axis, 0)

    def zeros(self, total: Any) -> Any:
        """Zeros for each part, from zeros of the shape of the total."""
        sharding = None if self.mesh is None else self._sharding(self._beside(total))
        return lax.full_like(total, 0, shape=(self.parts, *total.shape), sharding=sharding)

    def on_mesh(self, constant: Any) -> Any:
        """Move a constant to the mesh. JAX moves those of `lax.scan`, and cannot transpose to one that is elsewhere."""
        if self.mesh is None or not jnp.issubdtype(constant.dtype, jnp.inexact):
            return constant
        is_there = not jax.typeof(constant).sharding.mesh.empty
        return constant if is_there else jax.reshard(constant, self._sharding([None] * constant.ndim))

    def spread(self, constant: Any) -> Any:
        """Copy a constant for each part. Its gradient is the total of the copies' gradients."""
        shape, sharding = (self.parts, *jnp.shape(constant)), None
        if self.mesh is not None:
            spec = self._beside(constant)
            constant, sharding = jax.reshard(constant, self._sharding(spec[1:])), self._sharding(spec)
        return lax.broadcast_in_dim(constant, shape, range(1, len(shape)), out_sharding=sharding)

    def lie_in(self, constant: Any) -> bool:
        """Whether a constant has these rows, like the outputs of an encoder."""
        if self.mesh is None:
            return bool(jnp.shape(constant)) and jnp.shape(constant)[0] == self.count
        return any(map(self.holds, jax.typeof(constant).sharding.spec))

    def summed_for(self, constants: Sequence[Any], over_units: Container[int]) -> list[int]:
        """The positions of the constants whose gradients are sums over rows.

        Args:
            constants: the constants.
            over_units: positions of those whose first axis is not that of the rows, whatever its size.
        """
        return [
            index
            for index, constant in enumerate(constants)
            if jnp.issubdtype(constant.dtype, jnp.inexact)
            and (not self.lie_in(constant) or (self.mesh is None and index in over_units))
        ]

    def mean(self, copies: Any) -> Any:
        """The inverse of `spread`: all copies are equal."""
        return copies.sum(0) / self.parts

    def add(self, sums: Any, more: Any) -> Any:
        """Add to the sums of the parts, with their sharding."""
        return sums + (more if self.mesh is None else jax.reshard(more, jax.typeof(sums).sharding))

    def total(self, sums: Any, like: Any) -> Any:
        """The sum over all parts, sharded like an array."""
        total = sums.sum(0)
        return total if self.mesh is None else jax.reshard(total, jax.typeof(like).sharding)

    def shared(self, total: Any) -> Any:
        """A total as equal terms, one for each part, of which `total` is the sum."""
        return self.spread(total / self.parts)

    def holds(self, axes: Any) -> bool:
        """Whether an entry of a `PartitionSpec` has an axis over which the rows are sharded."""
        return not _names(self.axes).isdisjoint(_names(axes))

    def _beside(self, value: Any) -> list[Any]:
        """The sharding of an array with an axis of parts in front; no axis of the mesh is used twice."""
        return [self.axes, *(None if self.holds(axes) else axes for axes in jax.typeof(value).sharding.spec)]

    def _sharding(self, spec: Iterable[Any]) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*spec))


def sharded_rows(leaves: Sequence[Any], other_arrays: Iterable[Any] = ()) -> ShardedRows | None:
    """The rows and their sharding, as far as the trace knows it.

    With explicit axes the trace knows the sharding. With automatic axes it knows only the mesh; then the number of
    parts is the greatest common divisor of devices and rows.

    Args:
        leaves: arrays of one step, `(N, ...)`.
        other_arrays: other arrays that may be on a mesh.

    Returns:
        The rows, or None on one device, or without a known mesh.
    """
    leaves = [leaf for leaf in leaves if len(leaf.shape) and is_count(leaf.shape[0])]
    for leaf in leaves:
        sharding = _sharding_of(leaf)
        if sharding is not None and len(sharding.spec) and sharding.spec[0] is not None:
            axes = sharding.spec[0]
            parts = prod(sharding.mesh.shape[name] for name in _names(axes))
            return ShardedRows(leaf.shape[0], parts, sharding.mesh, axes) if parts > 1 else None
    mesh = known_mesh([*leaves, *other_arrays])
    parts = 1 if mesh is None or not leaves else gcd(leaves[0].shape[0], batch_devices(mesh))
    return ShardedRows(leaves[0].shape[0], parts) if parts > 1 else None


@dataclass(frozen=True, eq=False)
class SumsByParts:
    """Sums over the steps of a chunk and the rows of each part.

    Attributes:
        rows: the rows.
        maker: the equation that makes each value.
        varies: whether a value differs from step to step.
    """

    rows: ShardedRows
    maker: Mapping[Value, Equation]
    varies: Callable[[Atom], bool]
    _known: dict[Atom, bool] = field(default_factory=dict)

    def can_sum(self, atom: Atom) -> bool:
        """Whether the sum of a value follows, by linear equations, from sums over rows alone."""
        if atom not in self._known:
            self._known[atom] = self._can_sum(atom)
        return self._known[atom]

    def _can_sum(self, atom: Atom) -> bool:
        equation = self.maker.get(atom)  # type: ignore[arg-type]
        if equation is None:
            return False
        if self._ends(equation):
            return True
        if summed_operands(equation, self.varies) is None or self._is_sharded_by_rows(equation):
            return False
        return all(self.can_sum(operand) for operand in equation.inputs if self.varies(operand))

    def _ends(self, equation: Equation) -> bool:
        """Whether an equation sums over rows."""
        if equation.name == "reduce_sum":
            return self._row_axis(equation.inputs[0], equation.params["axes"]) is not None
        return self._row_axes(equation) is not None

    def _row_axes(self, equation: Equation) -> tuple[int, int] | None:
        """The axes of the rows of both operands of a product that contracts over them."""
        contraction = contraction_of(equation)
        if contraction is None or not all(map(self.varies, equation.inputs)):
            return None
        left, right = contraction.contracted
        axis = self._row_axis(equation.inputs[0], left)
        return None if axis is None else (axis, right[left.index(axis)])

    def _row_axis(self, atom: Atom, axes: Sequence[int]) -> int | None:
        sharding = _sharding_of(atom) if isinstance(atom, Value) and self.rows.mesh is not None else None
        if sharding is not None:
            return next((axis for axis in axes if sharding.spec[axis] == self.rows.axes), None)
        return next((axis for axis in sorted(axes) if atom.shape[axis] == self.rows.count), None)

    def _is_sharded_by_rows(self, equation: Equation) -> bool:
        shardings = [param for param in equation.params.values() if isinstance(param, NamedSharding)]
        return any(self.rows.holds(axes) for sharding in shardings for axes in sharding.spec)

    def sum(self, atom: Atom, chunk: Chunk, sums: dict[Atom, Any]) -> Any:
        """The sums of a value, `(parts, ...)`.

        Args:
            atom: the value.
            chunk: the chunk.
            sums: the sums so far. This one and those that it follows from are added.
        """
        if atom not in sums:
            equation = self.maker[atom]  # type: ignore[index]
            results = [self._end(equation, chunk)] if self._ends(equation) else self._linear(equation, chunk, sums)
            sums.update(zip(equation.outputs, results, strict=True))
        return sums[atom]

    def _linear(self, equation: Equation, chunk: Chunk, sums: dict[Atom, Any]) -> list[Any]:
        def operand(atom: Atom, is_summed: bool) -> Any:
            if self.varies(atom):
                return self.sum(atom, chunk, sums)
            # A constant term, added at each step, is spread over the parts.
            return chunk.read(atom) * (chunk.steps / self.rows.parts) if is_summed else chunk.read(atom)

        axes = [0 if self.varies(atom) else None for atom in equation.inputs]
        is_summed = summed_operands(equation, self.varies) or ()
        return jax.vmap(equation.evaluate, in_axes=axes)(*map(operand, equation.inputs, is_summed))

    def _end(self, equation: Equation, chunk: Chunk) -> Any:
        axes = self._row_axes(equation)
        if axes is not None:
            equation = replace(equation, params={**equation.params, "out_sharding": None})
            operands = [
                self.rows.split(chunk.read(atom), axis + 1) for atom, axis in zip(equation.inputs, axes, strict=True)
            ]
            return jax.vmap(partial(chunk.contracted, equation))(*operands)
        (operand,), summed = equation.inputs, equation.params["axes"]
        axis = self._row_axis(operand, summed)
        assert axis is not None
        if chunk.has_sums_for(operand):
            return jnp.sum(self.rows.split(chunk.sum(operand), axis), axis=tuple(axis + 1 for axis in summed))
        return jnp.sum(self.rows.split(chunk.read(operand), axis + 1), axis=(1, *(axis + 2 for axis in summed)))


def _sharding_of(value: Any) -> NamedSharding | None:
    """The sharding of an array or a `Value` on a mesh, else None."""
    aval = value.aval if isinstance(value, Value) else jax.typeof(value)
    sharding = getattr(aval, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and not sharding.mesh.empty else None


def _names(axes: Any) -> set[Any]:
    return set(axes) if isinstance(axes, tuple) else {axes} - {None}
