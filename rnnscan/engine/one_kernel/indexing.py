"""Reads and writes by index, without scatters, which XLA for the CPU calls: in the step or in its derivative.

Indices are compared with every place of a small operand.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan.ir.program import Equation


def _windows(equation: Equation) -> tuple[lax.GatherDimensionNumbers, Sequence[int], bool]:
    """The windows of a gather, or of the gather that reads what a scatter writes, and whether they are moved inside."""
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    if equation.name == "gather":
        return numbers, equation.params["slice_sizes"], mode != lax.GatherScatterMode.FILL_OR_DROP
    operand, _, updates = equation.inputs
    single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    written = iter(updates.shape[axis] for axis in numbers.update_window_dims)
    reads = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    sizes = [1 if axis in single else next(written) for axis in range(len(operand.shape))]
    return reads, sizes, mode == lax.GatherScatterMode.CLIP


class Comparison(NamedTuple):
    """How a gather reads, or a scatter writes, by comparing places. Axes that each window takes whole have no places.

    Attributes:
        whole: these axes of the operand.
        moved: the same in what is read or written.
        numbers: the numbers of a gather along the other axes.
        sizes: the sizes of its windows.
        is_clipped: whether windows are moved inside.
        comparisons: one for each element that is moved and each place.
    """

    whole: Sequence[int]
    moved: Sequence[int]
    numbers: lax.GatherDimensionNumbers
    sizes: tuple[int, ...]
    is_clipped: bool
    comparisons: int

    @staticmethod
    def of(equation: Equation) -> "Comparison":
        """That of a gather or a scatter."""
        numbers, sizes, is_clipped = _windows(equation)
        shape, moved = equation.inputs[0].shape, [*equation.inputs[2:], *equation.outputs][0]
        single = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        windows = [axis for axis in range(len(shape)) if axis not in single]
        axis_of = dict(zip(windows, map(int, numbers.offset_dims), strict=True))
        whole = [axis for axis in axis_of if sizes[axis] == shape[axis] and axis not in numbers.start_index_map]
        rest = [axis for axis in range(len(shape)) if axis not in whole]
        others = [axis for axis in range(len(moved.shape)) if axis not in [axis_of[axis] for axis in whole]]
        along = lax.GatherDimensionNumbers(
            offset_dims=tuple(others.index(axis_of[axis]) for axis in axis_of if axis not in whole),
            collapsed_slice_dims=tuple(map(rest.index, numbers.collapsed_slice_dims)),
            start_index_map=tuple(map(rest.index, numbers.start_index_map)),
            operand_batching_dims=tuple(map(rest.index, numbers.operand_batching_dims)),
            start_indices_batching_dims=numbers.start_indices_batching_dims,
        )
        comparisons = prod(moved.shape) * prod(shape[axis] for axis in rest)
        sizes = tuple(sizes[axis] for axis in rest)
        return Comparison(whole, [axis_of[axis] for axis in whole], along, sizes, is_clipped, comparisons)

    def places(self, shape: Sequence[int], indices: Any) -> Any:
        """The place, in an operand of this shape, of each element that is read or written; -1: none."""
        mode = lax.GatherScatterMode.CLIP if self.is_clipped else lax.GatherScatterMode.FILL_OR_DROP
        numbers = np.arange(prod(shape), dtype=np.int32).reshape(shape)
        return lax.gather(numbers, indices, self.numbers, slice_sizes=self.sizes, mode=mode, fill_value=-1)


def read_by_comparison(equation: Equation, operand: Any, indices: Any) -> list[Any]:
    """A gather: each element is the sum of those of the operand whose place it asks for, which is one or none."""
    compared, fill = Comparison.of(equation), equation.params.get("fill_value")

    def read(operand: Any) -> Any:
        places = compared.places(operand.shape, indices)
        flat = (*(1,) * places.ndim, operand.size)  # Broadcast by hand, for `jax_numpy_rank_promotion="raise"`.
        is_read = places[..., None] == jnp.arange(operand.size, dtype=jnp.int32).reshape(flat)
        result = sum_where(is_read, operand.reshape(flat), -1)
        return jnp.where(places < 0, jnp.asarray(jnp.nan if fill is None else fill, operand.dtype), result)

    for axis, moved in zip(compared.whole, compared.moved, strict=True):
        read = jax.vmap(read, axis, moved)
    return [read(operand)]


def written_by_comparison(equation: Equation, operand: Any, indices: Any, updates: Any) -> list[Any]:
    """A scatter that overwrites or adds. Of several writes to one place the last one counts, as on a CPU."""
    compared = Comparison.of(equation)

    def write(operand: Any, updates: Any) -> Any:
        places = compared.places(operand.shape, indices).reshape(-1)
        is_written = places[:, None] == jnp.arange(operand.size, dtype=jnp.int32)[None]
        if equation.name == "scatter":
            order = jnp.arange(1, places.size + 1, dtype=jnp.int32)[:, None]
            last = jnp.max(jnp.where(is_written, order, 0), 0)
            is_written = order == last[None]
        written = sum_where(is_written, updates.reshape(-1, 1), 0)
        flat = operand.reshape(-1)
        flat = jnp.where(last > 0, written, flat) if equation.name == "scatter" else flat + written
        return flat.reshape(operand.shape)

    for axis, moved in zip(compared.whole, compared.moved, strict=True):
        write = jax.vmap(write, (axis, moved), axis)
    return [write(operand, updates)]


def sum_where(condition: Any, values: Any, axis: int, *, keepdims: bool = False) -> Any:
    """The sum of the values for which a condition holds. The others may be NaN."""
    chosen = jnp.where(condition, values, jnp.zeros((), values.dtype))
    return jnp.sum(chosen, axis, keepdims=keepdims, dtype=values.dtype)


def sort(equation: Equation, keys: Any, *others: Any) -> list[Any]:
    """Operands in the order of the first one, along an axis. Equal elements keep their order; NaN is last.

    The rank of an element is the number of those before it.
    """
    axis, keys = equation.params["dimension"], jnp.moveaxis(keys, equation.params["dimension"], -1)
    ranks, place = _ranks(keys), lax.broadcasted_iota(jnp.int32, (*keys.shape, keys.shape[-1]), keys.ndim)
    results = []
    for operand in (keys, *(jnp.moveaxis(other, axis, -1) for other in others)):
        ordered = sum_where(ranks[..., None] == place, operand[..., None], -2)
        results.append(jnp.moveaxis(ordered, -1, axis))
    return results


def _ranks(keys: Any) -> Any:
    mine, other = keys[..., None], keys[..., None, :]
    shape, axis = jnp.broadcast_shapes(mine.shape, other.shape), keys.ndim
    is_earlier = lax.broadcasted_iota(jnp.int32, shape, axis) < lax.broadcasted_iota(jnp.int32, shape, axis - 1)
    is_before = _is_less(other, mine) | (is_earlier & ~_is_less(mine, other))
    return jnp.sum(is_before, -1, dtype=jnp.int32)


def _is_less(left: Any, right: Any) -> Any:
    is_less = left < right
    if not jnp.issubdtype(left.dtype, jnp.inexact):
        return is_less
    return is_less | (jnp.isnan(right) & ~jnp.isnan(left))
