"""Steps that compute fused gates as `(N, gates, H)` in place of `(N, gates H)`.

A fused kernel `(D, 4H)` has one block of columns for each gate. If several devices share its columns, each device has
whole gates, and every step has to move them. With a separate axis for the blocks, `(D, 4, H)`, the devices share
the units of each gate: the work on gates stays on a device.

The step of any cell is brought into this form. Slices along the last axis of a value say how long its blocks are, and
sums, products and elementwise functions pass that on to their operands, up to the parameters.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import depending
from rnnscan.ir.program import Atom, Equation, Value, determined, read
from rnnscan.ir.traits import Kind


@dataclass(frozen=True)
class _Blocked:
    """A value `(..., blocks * size)` as an array `(..., blocks, size)`."""

    array: Any

    @property
    def size(self) -> int:
        return int(self.array.shape[-1])

    @property
    def flat(self) -> Any:
        *leading, blocks, size = self.array.shape
        return lax.reshape(self.array, (*leading, blocks * size))


def in_blocks(leaf: Any, size: int) -> Any:
    """Put the blocks of the last axis on a separate axis: `(..., blocks, size)`."""
    return jnp.reshape(leaf, (*leaf.shape[:-1], leaf.shape[-1] // size, size))


def block_sizes(equations: Sequence[Equation], params: Sequence[Value], outputs: Sequence[Atom]) -> dict[Value, int]:
    """The length of the blocks of the last axis of each value, where it has any: the length of its units.

    Args:
        equations: those of a step.
        params: its parameters.
        outputs: its results, which are wanted whole.
    """
    sizes: dict[Value, int] = {}
    of_params = determined(equations, params)

    def cut(atom: Atom, *places: int) -> None:
        if isinstance(atom, Value) and atom.shape and isinstance(atom.shape[-1], int):
            sizes[atom] = gcd(sizes.get(atom, atom.shape[-1]), *places)

    for atom in outputs:
        cut(atom)
    for equation in reversed(equations):
        for output in equation.outputs:
            cut(output)
        if _joins(equation, of_params):
            lengths = [atom.shape[-1] for atom in equation.inputs]
            cut(equation.outputs[0], *lengths)
            for atom in equation.inputs:
                cut(atom, sizes[equation.outputs[0]])
        places = [sizes[output] for output in equation.outputs if output in sizes]
        pieces = _pieces(equation)
        if pieces is not None:
            cut(equation.inputs[0], *places, *(end for piece in pieces for end in piece))
        for position in _passing(equation):
            cut(equation.inputs[position], *places)
    return sizes


def weights(equations: Sequence[Equation], params: Sequence[Value]) -> set[Value]:
    """The parameters whose last axis is one of units: the columns of kernels, and biases."""
    params_of: dict[Value, set[Value]] = {value: {value} for value in params}
    unit_params: set[Value] = {value for value in params if len(value.shape) == 1}
    for equation in equations:
        passing = _passing(equation)
        from_params = [params_of.get(atom, set()) for atom in equation.reads]
        if contraction_of(equation) and passing:
            unit_params |= params_of.get(equation.inputs[1], set())  # type: ignore[arg-type]
        elif all(atom in params_of for atom in equation.reads) and (
            passing or _pieces(equation) or _joins(equation, params_of)
        ):
            params_of.update((output, set().union(*from_params)) for output in equation.outputs)
    return unit_params


@dataclass
class BlockedRun:
    """Evaluates the equations of a step, with values in blocks.

    Attributes:
        sizes: the length of the blocks of each value that has several.
        gather: replicates the operand of a product over the devices that share its units; takes it and the axis.
        named: replaces a value that is labelled.
        values: the values so far, in blocks or not.
    """

    sizes: Mapping[Any, int]
    gather: Callable[[Any, int], Any]
    named: Callable[[Value, Any], Any]
    values: dict[Value, Any]
    _gathered: dict[tuple[Atom, int], Any] = field(default_factory=dict)

    def run(self, equations: Sequence[Equation], params: Sequence[Value]) -> None:
        """Evaluate equations in order."""
        fixed, of_params = depending(equations, params), determined(equations, params)
        for equation in equations:
            results = self._joined(equation) if _joins(equation, of_params) else self._evaluate(equation, fixed)
            for output, result in zip(equation.outputs, results, strict=True):
                whole = result.array if isinstance(result, _Blocked) else result
                named = self.named(output, whole)
                self.values[output] = _Blocked(named) if isinstance(result, _Blocked) else named

    def read(self, atom: Atom) -> Any:
        """A value without blocks."""
        value = read(atom, self.values)
        return value.flat if isinstance(value, _Blocked) else value

    def set_blocks(self, value: Value, array: Any) -> None:
        """Set a value that is in blocks: `(..., blocks, size)`."""
        self.values[value] = _Blocked(array)

    def _blocks(self, atom: Atom, size: int) -> Any:
        value = read(atom, self.values)
        if isinstance(value, _Blocked) and value.size == size:
            return value.array
        return in_blocks(self.read(atom), size)

    def _evaluate(self, equation: Equation, fixed: set[Value]) -> Sequence[Any]:
        operands, params, name = equation.inputs, equation.params, equation.name
        result = equation.outputs[0] if equation.outputs else None
        pieces = _pieces(equation)
        if pieces is not None and operands[0] in self.sizes:
            return [self._piece(operands[0], *piece) for piece in pieces]
        size = self.sizes.get(result)
        if size is None:
            size = next(filter(None, (self._present(operands[position]) for position in _passing(equation))), None)
        if contraction_of(equation) and _passing(equation) and operands[1] in fixed:
            return [self._product(equation, size)]
        if name == "concatenate" and params["dimension"] == len(operands[0].shape) - 1:
            # Else XLA shards the whole, whose parts then do not lie where they are read.
            return equation.evaluate(*(self._whole(atom, len(atom.shape) - 1) for atom in operands))
        if equation.kind is Kind.REDUCE and self._present(operands[0]) and len(operands[0].shape) - 1 in params["axes"]:
            over_both = replace(equation, params={**params, "axes": (*params["axes"], len(operands[0].shape))})
            return over_both.evaluate(read(operands[0], self.values).array)  # Over blocks, and over their units.
        if size is None or not (_passing(equation) or name == "broadcast_in_dim"):
            return equation.evaluate(*map(self.read, operands))
        assert result is not None
        shape = (*result.shape[:-1], result.shape[-1] // size, size)
        if name == "broadcast_in_dim":
            dimensions, operand = params["broadcast_dimensions"], self.read(operands[0])
            if len(result.shape) - 1 in dimensions:
                operand = self._aligned(operands[0], result, size)
                dimensions = (*dimensions, len(result.shape))
            return [_Blocked(lax.broadcast_in_dim(operand, shape, dimensions))]
        if name == "reshape":
            return [_Blocked(lax.reshape(self._blocks(operands[0], size), shape))]
        blocked_operands = [self._aligned(atom, result, size) for atom in operands]
        return [_Blocked(array) for array in equation.evaluate(*blocked_operands)]

    def _present(self, atom: Atom) -> int | None:
        """The length of the blocks that a value is in now."""
        value = self.values.get(atom)  # type: ignore[arg-type]
        return value.size if isinstance(value, _Blocked) else None

    def _piece(self, atom: Atom, start: int, end: int) -> Any:
        size = self.sizes[atom]
        piece = lax.slice_in_dim(self._blocks(atom, size), start // size, end // size, axis=-2)
        return jnp.squeeze(piece, -2) if end - start == size else _Blocked(piece)

    def _joined(self, equation: Equation) -> Sequence[Any]:
        """Parameters in a row, such as the kernels of gates. Each device has its units of all."""
        size = self.sizes.get(equation.outputs[0])
        if size is None:
            return equation.evaluate(*map(self.read, equation.inputs))
        return [_Blocked(jnp.concatenate([self._blocks(atom, size) for atom in equation.inputs], axis=-2))]

    def _product(self, equation: Equation, size: int | None) -> Any:
        left, right = equation.inputs
        contraction = contraction_of(equation)
        assert contraction is not None
        operand = self._whole(left, *contraction.contracted[0])
        kernel = self.read(right) if size is None else self._blocks(right, size)
        (product,) = equation.evaluate(operand, kernel)
        return product if size is None else _Blocked(product)

    def _whole(self, atom: Atom, *axes: int) -> Any:
        """A value without blocks, which is not sharded along some axes."""
        operand = self.read(atom)
        for axis in axes:
            if (atom, axis) not in self._gathered:
                self._gathered[atom, axis] = self.gather(operand, axis)
            operand = self._gathered[atom, axis]
        return operand

    def _aligned(self, atom: Atom, result: Value, size: int) -> Any:
        """An operand of an elementwise function, with axes like those of the result."""
        if not atom.shape:
            return self.read(atom)
        return self._blocks(atom, size if atom.shape[-1] == result.shape[-1] else 1)


def _pieces(equation: Equation) -> list[tuple[int, int]] | None:
    """The start and end of the pieces that an equation cuts out of the last axis of its operand; None for others."""
    params = equation.params
    if equation.name == "split" and params["axis"] == len(equation.inputs[0].shape) - 1:
        return list(pairwise(accumulate(map(int, params["sizes"]), initial=0)))
    if equation.name != "slice" or (params["strides"] is not None and set(params["strides"]) != {1}):
        return None
    starts, ends = params["start_indices"], params["limit_indices"]
    is_whole = not any(starts[:-1]) and tuple(ends[:-1]) == equation.inputs[0].shape[:-1]
    return [(starts[-1], ends[-1])] if is_whole else None


def _joins(equation: Equation, of_params: Container[Any]) -> bool:
    """Whether an equation concatenates parameters along their last axis."""
    if equation.name != "concatenate" or not all(atom in of_params for atom in equation.inputs):
        return False
    return bool(equation.params["dimension"] == len(equation.outputs[0].shape) - 1)


def _passing(equation: Equation) -> list[int]:
    """The positions of operands whose last axis is that of the result."""
    if len(equation.outputs) != 1 or not equation.outputs[0].shape:
        return []
    shape, params, contraction = equation.outputs[0].shape, equation.params, contraction_of(equation)
    if contraction is not None:
        return [1] if contraction.free[1][-1:] == (len(equation.inputs[1].shape) - 1,) else []
    keeps_last = equation.traits.is_elementwise
    if equation.name == "broadcast_in_dim":
        keeps_last = len(shape) - 1 in params["broadcast_dimensions"]
    if equation.name == "reshape":
        keeps_last = params["dimensions"] is None
    if not keeps_last:
        return []
    return [place for place, atom in enumerate(equation.inputs) if atom.shape and atom.shape[-1] == shape[-1]]
