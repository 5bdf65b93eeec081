"""Reads and writes by index, without scatters, which XLA for the CPU calls: in the step or in its derivative.

Known indices take slices. Others are compared with every place of a small operand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan.ir.program import Equation


@contextmanager
def computing_now() -> Iterator[None]:
    """Compute what is known while tracing. A user's guard of transfers is for values of the program."""
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        yield


def places_of(equation: Equation, indices: Any) -> Any:
    """For each element of the result its place in the operands, flattened one after the other; -1: none.

    Args:
        equation: a gather, or a scatter that overwrites, of operands with few elements.
        indices: its indices, which are known.
    """
    shapes = [atom.shape for position, atom in enumerate(equation.inputs) if position != 1]
    starts = accumulate(map(prod, shapes[:-1]), initial=0)
    first, *others = (_numbered(shape, start) for shape, start in zip(shapes, starts, strict=True))
    fill = {"fill_value": -1} if equation.name == "gather" else {}
    params = equation.primitive.get_bind_params({**equation.params, **fill})
    with computing_now():
        return np.asarray(equation.primitive.bind(first, indices, *others, **params))


def taken(operands: list[Any], places: Any, fill: Any) -> Any:
    """The elements of operands at known places, in the shape of the places.

    Args:
        operands: arrays of one dtype.
        places: of each element, in the operands flattened one after the other; -1: the fill value.
        fill: the fill value.
    """
    flat = lax.concatenate([lax.reshape(operand, (operand.size,)) for operand in operands], 0)
    parts = [
        lax.full((count,), fill, flat.dtype)
        if first < 0
        else lax.slice(flat, (first,), (first + step * (count - 1) + 1,), (step,))
        for first, step, count in _runs(places.reshape(-1).tolist())
    ]
    return lax.reshape(lax.concatenate(parts, 0), places.shape)


def _runs(places: list[int]) -> Iterator[tuple[int, int, int]]:
    """The first place, the step and the number of places of longest runs with one positive step, or of fill values."""
    start = 0
    while start < len(places):
        end, first = start + 1, places[start]
        step = places[end] - first if end < len(places) else 1
        runs_on = step == 0 if first < 0 else step > 0
        while runs_on and end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        yield first, max(step, 1), end - start
        start = end


def read_by_comparison(equation: Equation, operand: Any, indices: Any) -> list[Any]:
    """A gather: each element is the sum of those of the operand whose place it asks for, which is one or none.

    The indices are read by a gather of places, which has no derivative.
    """
    params = equation.primitive.get_bind_params({**equation.params, "fill_value": -1})
    places = equation.primitive.bind(_numbered(operand.shape), indices, **params)
    fill = equation.params.get("fill_value")
    flat = (*(1,) * places.ndim, operand.size)  # Broadcast by hand, for `jax_numpy_rank_promotion="raise"`.
    is_read = places[..., None] == jnp.arange(operand.size).reshape(flat)
    result = sum_where(is_read, operand.reshape(flat), -1)
    return [jnp.where(places < 0, jnp.asarray(jnp.nan if fill is None else fill, operand.dtype), result)]


def written_by_comparison(equation: Equation, operand: Any, indices: Any, updates: Any) -> list[Any]:
    """A scatter that overwrites or adds. Of several writes to one place the last one counts, as on a CPU."""
    places = _places_of_updates(equation, operand, indices, updates).reshape(-1)
    is_written = places[:, None] == jnp.arange(operand.size)[None]
    if equation.name == "scatter":
        order = jnp.arange(1, places.size + 1)[:, None]
        last = jnp.max(jnp.where(is_written, order, 0), 0)
        is_written = order == last[None]
    written = sum_where(is_written, updates.reshape(-1, 1), 0)
    flat = operand.reshape(-1)
    flat = jnp.where(last > 0, written, flat) if equation.name == "scatter" else flat + written
    return [flat.reshape(operand.shape)]


def _places_of_updates(equation: Equation, operand: Any, indices: Any, updates: Any) -> Any:
    """The place in the flattened operand to which each update goes; -1: none. The gather is that of the derivative."""
    numbers = equation.params["dimension_numbers"]
    single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    is_clipped = equation.params["mode"] == lax.GatherScatterMode.CLIP
    mode = lax.GatherScatterMode.CLIP if is_clipped else lax.GatherScatterMode.FILL_OR_DROP
    sizes = iter(updates.shape[axis] for axis in numbers.update_window_dims)
    return lax.gather(
        _numbered(operand.shape),
        indices,
        lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        ),
        slice_sizes=tuple(1 if axis in single else next(sizes) for axis in range(operand.ndim)),
        mode=mode,
        fill_value=-1,
    )


def _numbered(shape: tuple[int, ...], start: int = 0) -> Any:
    return np.arange(start, start + prod(shape), dtype=np.int32).reshape(shape)


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
