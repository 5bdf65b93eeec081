"""Reads and writes by indices that are known, as slices."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

from rnnscan.ir.program import Equation


def places_of(equation: Equation, indices: Any) -> Any:
    """For each element of the result its place in the operands, flattened one after the other; -1: none.

    Args:
        equation: a gather, or a scatter that overwrites, of operands with few elements.
        indices: its indices.
    """
    sizes = [int(np.prod(atom.shape)) for position, atom in enumerate(equation.inputs) if position != 1]
    starts = np.cumsum([0, *sizes])
    numbers = [np.arange(start, start + size, dtype=np.int32) for start, size in zip(starts[:-1], sizes, strict=True)]
    shapes = [atom.shape for position, atom in enumerate(equation.inputs) if position != 1]
    first, *others = (number.reshape(shape) for number, shape in zip(numbers, shapes, strict=True))
    params = equation.primitive.get_bind_params({**equation.params, **_FILL[equation.name]})
    with jax.ensure_compile_time_eval():
        return np.asarray(equation.primitive.bind(first, indices, *others, **params))


_FILL: dict[str, dict[str, Any]] = {"gather": {"fill_value": -1}, "scatter": {}}


def taken(operands: list[Any], places: Any, fill: Any) -> Any:
    """The elements of operands at places, in the shape of the places.

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
