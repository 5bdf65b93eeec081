"""Which elements of an operation's results read which elements of its operands."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.ir.program import Equation
from rnnscan.ir.traits import Kind, traits_of


# A boolean array like a value, true at the elements in question; None: no element.
Mask: TypeAlias = Any


def is_inexact(atom: Any) -> bool:
    """Whether a value may be NaN or inf."""
    return bool(jnp.issubdtype(atom.dtype, jnp.inexact))


@runtime_checkable
class Pattern(Protocol):
    """Which elements of results read which elements of the operands that may be NaN or inf.

    It takes all operands of the equation, because those that are integers may be indices.
    """

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        """From a mask of each such operand to masks of the results that read an element of these."""
        ...

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        """From masks of the results to masks of such operands that an element of these reads."""
        ...


def pattern_of(equation: Equation) -> Pattern:
    """The pattern of an equation without a body."""
    traits = traits_of(equation.name)
    if equation.name == "optimization_barrier":
        return _Same(equation)
    if equation.name in _MOVES or traits.kind in (Kind.VIEW, Kind.PART, Kind.JOIN, Kind.READ, Kind.WRITE):
        return _Moved(equation)
    if traits.kind in (Kind.ELEMENTWISE, Kind.SAME, Kind.PLACE):
        return _Elementwise(equation)
    if traits.kind is Kind.REDUCE:
        return _Reduced(equation)
    if traits.kind is Kind.CUMULATIVE:
        return _Cumulative(equation)
    if equation.name == "dot_general":
        return _Product(equation)
    is_linear = traits.linear is not None or traits.is_bilinear
    return _Linear(equation) if is_linear and equation.primitive.name != "psum" else _Whole(equation)


# Each element of the result is an element of an operand.
_MOVES = ("select_n", "scatter")


class _Base:
    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self.floats = [place for place, atom in enumerate(equation.inputs) if is_inexact(atom)]
        self.shapes = [equation.inputs[place].shape for place in self.floats]
        self.results = [output.shape for output in equation.outputs]

    def filled(self, masks: Sequence[Mask]) -> list[Any]:
        return [
            np.zeros(shape, bool) if mask is None else mask for mask, shape in zip(masks, self.results, strict=True)
        ]


class _Same(_Base):
    """Each result is the operand at its place."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        of_place = dict(zip(self.floats, masks, strict=True))
        return [of_place.get(place, np.zeros(shape, bool)) for place, shape in enumerate(self.results)]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        filled = self.filled(masks)
        return [filled[place] for place in self.floats]


class _Elementwise(_Base):
    """Each element reads those at its place. A scalar, or an axis of size 1, is read by many."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        read = np.zeros(self.results[0], bool)
        for mask in masks:
            read = read | mask
        return [read]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        (mask,) = self.filled(masks)
        return [reduced_to(shape, mask) for shape in self.shapes]


def reduced_to(shape: tuple[int, ...], mask: Any) -> Any:
    """A mask of a result, for an operand that is broadcast to it."""
    if not shape:
        return mask.any()
    axes = tuple(axis for axis, size in enumerate(shape) if size != mask.shape[axis])
    return mask.any(axes, keepdims=True) if axes else mask


class _Moved(_Base):
    """Each element is an element of an operand. An operation on the numbers of elements tells which."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        flat = np.concatenate([*(np.ravel(mask) for mask in masks), [False]])  # -1 reads no element.
        return [flat[numbers] for numbers in self._numbers(operands)]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        flat = np.zeros(self._ends[-1] + 1, bool)
        for numbers, mask in zip(self._numbers(operands), self.filled(masks), strict=True):
            flat[numbers[mask]] = True
        parts = np.split(flat[:-1], self._ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @cached_property
    def _ends(self) -> list[int]:
        return [int(end) for end in np.cumsum([np.prod(shape, dtype=int) for shape in self.shapes])]

    def _numbers(self, operands: Sequence[Any]) -> list[Any]:
        if len(self.floats) == len(operands):
            return self._fixed_numbers
        return self._moved(operands)

    @cached_property
    def _fixed_numbers(self) -> list[Any]:
        return self._moved([None] * len(self.floats))

    def _moved(self, operands: Sequence[Any]) -> list[Any]:
        numbered = [*operands]
        for place, shape, end in zip(self.floats, self.shapes, self._ends, strict=True):
            size = int(np.prod(shape, dtype=int))
            numbered[place] = jnp.arange(end - size, end, dtype=np.int32).reshape(shape)
        moved = [np.asarray(result) for result in self._run(numbered)]
        return [np.where((numbers >= 0) & (numbers < self._ends[-1]), numbers, -1) for numbers in moved]

    @cached_property
    def _run(self) -> Any:
        equation = self.equation
        fill = {"fill_value": -1} if "fill_value" in equation.params else {}

        def run(numbered: list[Any]) -> Any:
            primitive = equation.primitive
            results = primitive.bind(*numbered, **primitive.get_bind_params({**equation.params, **fill}))
            return results if primitive.multiple_results else [results]

        return jax.jit(run)


class _Reduced(_Base):
    """Each element reads those of some axes."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        axes = tuple(self.equation.params["axes"])
        return [masks[0].any(axes) if masks else np.zeros(shape, bool) for shape in self.results]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        (mask,), axes = self.filled(masks), tuple(self.equation.params["axes"])
        return [np.broadcast_to(np.expand_dims(mask, axes), shape) for shape in self.shapes]


class _Cumulative(_Base):
    """Each element reads those up to it."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        return [self._accumulated(masks[0], reverse=self.equation.params["reverse"])]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        return [self._accumulated(self.filled(masks)[0], reverse=not self.equation.params["reverse"])]

    def _accumulated(self, mask: Any, *, reverse: bool) -> Any:
        axis = self.equation.params["axis"]
        if reverse:
            return np.flip(np.logical_or.accumulate(np.flip(mask, axis), axis), axis)
        return np.logical_or.accumulate(mask, axis)


class _Product(_Base):
    """Each element of a `dot_general` reads a row of one operand and a column of the other."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        left, right = (self._without_contracted(side, mask) for side, mask in enumerate(masks))
        batch = len(self._batch[0])
        frees = [side.ndim - batch for side in (left, right)]
        left = left.reshape(left.shape + (1,) * frees[1])
        right = right.reshape(right.shape[:batch] + (1,) * frees[0] + right.shape[batch:])
        return [left | right]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        (mask,) = self.filled(masks)
        batch = len(self._batch[0])
        free = len(self.shapes[0]) - batch - len(self._contracted[0])
        others = (tuple(range(batch + free, mask.ndim)), tuple(range(batch, batch + free)))
        return [self._with_contracted(side, mask.any(others[side])) for side in range(2)]

    @property
    def _contracted(self) -> tuple[tuple[int, ...], ...]:
        return self.equation.params["dimension_numbers"][0]

    @property
    def _batch(self) -> tuple[tuple[int, ...], ...]:
        return self.equation.params["dimension_numbers"][1]

    def _order(self, side: int) -> list[int]:
        """The axes of an operand: those of the batch, the free ones, the contracted ones."""
        batch, contracted = [*self._batch[side]], [*self._contracted[side]]
        free = [axis for axis in range(len(self.shapes[side])) if axis not in batch + contracted]
        return batch + free + contracted

    def _without_contracted(self, side: int, mask: Any) -> Any:
        count = len(self._contracted[side])
        return np.transpose(mask, self._order(side)).any(tuple(range(mask.ndim - count, mask.ndim)))

    def _with_contracted(self, side: int, mask: Any) -> Any:
        order = self._order(side)
        shape = [self.shapes[side][axis] for axis in order]
        mask = np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(order) - mask.ndim)), shape)
        return np.transpose(mask, np.argsort(order))


class _Linear(_Base):
    """The pattern of a linear operation: that of its derivative where all operands are 1."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        tangents = [mask.astype(operands[place].dtype) for place, mask in zip(self.floats, masks, strict=True)]
        return [np.asarray(count) != 0 for count in self._forward(list(operands), tangents)]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        cotangents = [
            mask.astype(output.dtype) for mask, output in zip(self.filled(masks), self.equation.outputs, strict=True)
        ]
        return [np.asarray(count) != 0 for count in self._backward(list(operands), cotangents)]

    @cached_property
    def _forward(self) -> Any:
        return jax.jit(lambda operands, tangents: jax.jvp(self._of(operands), self._ones(operands), tangents)[1])

    @cached_property
    def _backward(self) -> Any:
        return jax.jit(lambda operands, cotangents: jax.vjp(self._of(operands), *self._ones(operands))[1](cotangents))

    def _ones(self, operands: list[Any]) -> list[Any]:
        return [jnp.ones_like(operands[place]) for place in self.floats]

    def _of(self, operands: list[Any]) -> Any:
        def run(*some: Any) -> list[Any]:
            every = [*operands]
            for place, operand in zip(self.floats, some, strict=True):
                every[place] = operand
            return self.equation.evaluate(*every)

        return run


class _Whole(_Base):
    """All of each result reads all of the operands, for operations of which nothing else is known."""

    def readers(self, operands: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        return [np.full(shape, any(mask.any() for mask in masks)) for shape in self.results]

    def read_by(self, operands: Sequence[Any], masks: Sequence[Mask]) -> list[Any]:
        return [np.full(shape, any(mask.any() for mask in self.filled(masks))) for shape in self.shapes]
