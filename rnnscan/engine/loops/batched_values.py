"""The values of a chunk of steps, computed on demand: batched over its steps, or summed over them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from rnnscan.engine.analysis.linear_sums import ends_of_sum, summed_operands
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.loops.indexing import item_of, item_or, items_of, moved, shifted
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import (
    Atom,
    Constant,
    Equation,
    Value,
    evaluate,
    inputs_of,
    nominal_size,
    outputs_of,
    scatters_into_zeros,
)


@dataclass(frozen=True)
class StackPart:
    """The values of a chunk's steps within the stack of all steps.

    A loop reads each from the stack. It is not copied to the chunk, unless batched work reads it too.

    Attributes:
        stack: the values of all steps.
        first: the first step of the chunk.
        steps: how many steps.
    """

    stack: Any
    first: Any
    steps: int

    def part(self, first: Any, steps: int) -> Self:
        """The values of some of these steps."""
        return replace(self, first=moved(self.first, first), steps=steps)

    def at(self, step: Any) -> Any:
        """The value at a step of the chunk."""
        return item_of(self.stack, moved(self.first, step))

    def copied(self) -> Any:
        """The values of the chunk's steps."""
        return self.stack if self._has_all else items_of(self.stack, self.first, self.steps)

    @property
    def _has_all(self) -> bool:
        return bool(self.steps == self.stack.shape[0])


@dataclass(frozen=True)
class NeighborPart(StackPart):
    """The values one step after those of a chunk, or one step before, within the stack of all steps.

    Attributes:
        to_end: whether they are those one step further to the end of the stack.
        outside: the value after the end, or before the start.
    """

    to_end: bool
    outside: Any

    def at(self, step: Any) -> Any:
        """The value one step after, or before, that at a step of the chunk."""
        index = moved(moved(self.first, step), 1 if self.to_end else -1)
        return item_or(self.stack, index, self.stack.shape[0] if self.to_end else -1, self.outside)

    def copied(self) -> Any:
        """The values one step after, or before, those of the chunk's steps."""
        last = self.outside if self._has_all else self.at(self.steps - 1 if self.to_end else 0)
        return shifted(super().copied(), last, to_start=self.to_end)


# (first step, steps) -> the values of these steps: a part of a stack, or an array.
Source: TypeAlias = Callable[[Any, int], Any]


def of_stack(stack: Any) -> Source:
    """The values at the steps of a chunk."""
    return partial(StackPart, stack)


def of_neighbors(stack: Any, outside: Any, *, to_end: bool) -> Source:
    """The values one step after, or before, those of a chunk. `outside`: the one that is not in the stack."""
    return partial(NeighborPart, stack, to_end=to_end, outside=outside)


def all_of(source: Source, length: int) -> Any:
    """The values at all steps."""
    part = source(np.int32(0), length)
    return part.copied() if isinstance(part, StackPart) else part


class Chunk:
    """Values of a number of steps. Those that vary from step to step have a leading axis of steps.

    Args:
        steps: how many steps.
        invariant: values that are the same at every step.
        varying: values of each step, stacked, or as a part of a greater stack.
        looped: values that loops over the steps will make, and `add` will bring.
        equations: those that compute other values on demand.
        once: the equations that made invariant values.
        heuristics: the choices of the platform.

    Attributes:
        counts: for each loop that Newton's method solved, its iterations, and whether it ran step by step in the end.
        starts: the carry leaves before each chunk that `Runner.starts` wrote.
    """

    def __init__(
        self,
        steps: int,
        invariant: Mapping[Value, Any],
        varying: Mapping[Value, Any],
        looped: Iterable[Value],
        equations: Sequence[Equation],
        once: Sequence[Equation] = (),
        *,
        heuristics: Heuristics,
    ) -> None:
        self.steps = steps
        self.heuristics = heuristics
        self.varying = dict(varying)
        self.counts: list[tuple[Any, Any]] = []
        self.starts: list[Any] = []
        self._invariant = invariant
        self._equations = equations
        self._maker: dict[Atom, Equation] = {o: producer for producer in (*once, *equations) for o in producer.outputs}
        self._sums: dict[Atom, Any] = {}
        self._varies = {*varying, *looped}
        for equation in equations:
            if any(self.varies(atom) for atom in equation.inputs):
                self._varies.update(equation.outputs)

    def add(self, varying: Mapping[Value, Any]) -> None:
        """Bring values of each step, stacked."""
        self.varying.update(varying)

    def add_sums(self, sums: Mapping[Atom, Any]) -> None:
        """Bring sums over the steps."""
        self._sums.update(sums)

    def make_again(self, values: Collection[Value], after: Any) -> None:
        """Make stacks again where they are read from now on, so that they do not lie in memory until then.

        Args:
            values: the values.
            after: a result that comes before. Without it, XLA would merge both.
        """
        known = {value for equation in self._equations if equation.outputs[0] in values for value in equation.reads}
        held = [value for value in self.varying if value in known and value not in values]
        if held:
            stacks = lax.optimization_barrier(([self.read(value) for value in held], after))[0]
            self.varying.update(zip(held, stacks, strict=True))
        for value in values:
            self.varying.pop(value, None)

    def varies(self, atom: Atom) -> bool:
        """Whether a value differs from step to step."""
        return isinstance(atom, Value) and atom in self._varies

    def stacked(self, atom: Atom) -> Any:
        """A value at each step, with the axis of steps even where it does not vary."""
        value = self.read(atom)
        return value if self.varies(atom) else jnp.broadcast_to(value, (self.steps, *jnp.shape(value)))

    def sum(self, atom: Atom) -> Any:
        """The sum of a value over the steps.

        It is pushed through linear equations down to products of two values that vary, of which one product that
        contracts over the steps too gives the sum: `sum_t a_t^T b_t` never makes a stack of weight-sized arrays.
        """
        if not self.varies(atom):
            return self.read(atom) * self.steps
        if atom not in self._sums:
            self._sums[atom] = self._sum(atom)
        return self._sums[atom]

    def added_to(self, total: Any, atom: Atom) -> Any:
        """A total, and the sum of a value over the steps. Rows of a table are added in place."""
        equation = self._maker.get(atom)
        if equation is None or atom in self._sums or atom.shape != total.shape or not self._scatters(atom):
            return added(total, self.sum(atom))
        if equation.name == "scatter-add":
            return equation.origin.run(scattered_over_steps, equation, total, *map(self.stacked, equation.inputs[1:]))
        return reduce(self.added_to, equation.inputs, total)

    def _scatters(self, atom: Atom) -> bool:
        """Whether a value is scattered into zeros, or has such a term."""
        equation = self._maker.get(atom)
        if equation is not None and equation.name in ("add", "add_any"):
            return any(map(self._scatters, equation.inputs))
        return self.varies(atom) and scatters_into_zeros(equation, self._maker)

    def _sum(self, atom: Atom) -> Any:
        equation = self._maker.get(atom)
        if equation is None or equation.is_wider_than_allowed:
            return _summed(self.read(atom), (0,))
        if equation.name == "reduce_sum" and not self.has_sums_for(atom):
            # Not over the steps first: on a CPU the XLA of jax 0.10.2 takes twenty times as long for such a sum.
            axes = (0, *(axis + 1 for axis in equation.params["axes"]))
            return equation.origin.run(_summed, self.read(equation.inputs[0]), axes)
        summed = summed_operands(equation, self.varies)
        if summed is not None:
            pairs = zip(equation.inputs, summed, strict=True)
            operands = [self.sum(atom) if is_summed else self.read(atom) for atom, is_summed in pairs]
            self._sums.update(zip(equation.outputs, equation.evaluate(*_alike(equation, operands)), strict=True))
            return self._sums[atom]
        if contraction_of(equation):
            return self.contracted(equation, *map(self.read, equation.inputs))
        if scatters_into_zeros(equation, self._maker):
            return self.added_to(self.read(equation.inputs[0]), atom)
        return _summed(self.read(atom), (0,))

    def contracted(self, product: Equation, left: Any, right: Any) -> Any:
        """The sum over steps of products of two values that vary: one product that contracts over the steps too."""
        contraction = contraction_of(product)
        assert contraction is not None
        contracted = tuple((0, *(axis + 1 for axis in axes)) for axes in contraction.contracted)
        batch = tuple(tuple(axis + 1 for axis in axes) for axes in contraction.batch)
        first_axes = (*range(len(contracted[0])),)
        of_columns = contracted == (first_axes, first_axes) and left.ndim == right.ndim == len(first_axes) + 1
        if of_columns and not batch[0] and self.heuristics.transpose_rows:
            return _columns_by_columns(product, left, right)
        return _product(product, left, right, (contracted, batch))

    def has_sums_for(self, atom: Atom) -> bool:
        """Whether the sum of a value follows from other sums, or from products."""
        ends = ends_of_sum(atom, self._maker, self.varies, materialized=self._sums)
        return any(isinstance(end, Equation) or end in self._sums for end in ends)

    def read(self, atom: Atom) -> Any:
        """A value, with an axis of steps where it varies."""
        if isinstance(atom, Constant):
            return atom.value
        if atom in self._invariant:
            return self._invariant[atom]
        if atom not in self.varying:
            self._evaluate([e for e in needed(self._equations, [atom]) if e.outputs[0] not in self.varying])
        value = self.varying[atom]
        if isinstance(value, StackPart):
            value = self.varying[atom] = value.copied()
        return value

    def _evaluate(self, equations: Sequence[Equation]) -> None:
        """Run equations, batched over the steps."""
        outputs = dict.fromkeys(outputs_of(equations))
        known = [value for value in dict.fromkeys(inputs_of(equations)) if value not in outputs]

        def run(*operands: Any) -> list[Any]:
            values = dict(zip(known, operands, strict=True))
            evaluate(equations, values)
            return [values[value] for value in outputs]

        in_axes, out_axes = ([0 if self.varies(value) else None for value in values] for values in (known, outputs))
        operands = [self.read(value) for value in known]
        if 0 not in in_axes:
            results = run(*operands)
        else:
            results = (_for_one_step if self.steps == 1 else jax.vmap)(run, in_axes, out_axes)(*operands)
        if self.heuristics.barrier_on_stacks:  # Else XLA concatenates once for each product that reads the result.
            joined = {o for e in equations if e.name == "concatenate" for o in e.outputs}
            results = [lax.optimization_barrier(r) if v in joined else r for v, r in zip(outputs, results, strict=True)]
        self.varying.update(zip(outputs, results, strict=True))


def _for_one_step(
    run: Callable[..., list[Any]], in_axes: Sequence[int | None], out_axes: Sequence[int | None]
) -> Callable[..., list[Any]]:
    """`jax.vmap` over one step.

    With an axis of one step in a loop within the step, such as that of a segment, XLA for a TPU writes the stacks of an
    LSTM by operations of their own (jax 0.10.2).
    """

    def run_one(*operands: Any) -> list[Any]:
        pairs = zip(operands, in_axes, strict=True)
        results = run(*(leaf if axis is None else lax.squeeze(leaf, [0]) for leaf, axis in pairs))
        return [
            leaf if axis is None else lax.expand_dims(leaf, [0]) for leaf, axis in zip(results, out_axes, strict=True)
        ]

    return run_one


def _summed(terms: Any, axes: tuple[int, ...]) -> Any:
    """A sum. `jnp.sum` adds up 16-bit numbers in 32 bits, but is traced as a call for each shape."""
    return jnp.sum(terms, axis=axes) if terms.dtype.itemsize < 4 else lax.reduce_sum(terms, axes)


def _alike(equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    """Operands in dtypes that an equation takes. A loop adds up numbers of 16 bits in 32, so sums may be wider."""
    given, dtypes = [*map(jnp.result_type, operands)], [atom.dtype for atom in equation.inputs]
    if len(operands) == 1 or given == dtypes:
        return operands
    if equation.traits.has_one_dtype:
        dtypes = [max(given, key=lambda dtype: int(dtype.itemsize))] * len(operands)
    return [lax.convert_element_type(operand, dtype) for operand, dtype in zip(operands, dtypes, strict=True)]


def added(total: Any, term: Any) -> Any:
    """A sum and one more term, in the dtype of the sum. `+` would be traced as a call for each shape."""
    return lax.add(total, lax.convert_element_type(term, total.dtype))


def scattered_over_steps(equation: Equation, total: Any, indices: Any, updates: Any) -> Any:
    """A total plus the terms of a `scatter_add` at every step: one scatter over the first axis of both stacks."""
    numbers = equation.params["dimension_numbers"]
    shifted = {
        name: tuple(axis + 1 for axis in getattr(numbers, name))
        for name in ("update_window_dims", "scatter_indices_batching_dims")
    }
    updates = lax.convert_element_type(updates, total.dtype)
    numbers = numbers._replace(**shifted)
    return lax.scatter_add(total, indices, updates, numbers, mode=equation.params["mode"])


def _columns_by_columns(equation: Equation, left: Any, right: Any) -> Any:
    """The sum of `left.T @ right` over the steps, with the narrower of the two transposed first.

    XLA for the CPU transposes the greater one where its last axis is not contracted, and without the barrier it would
    undo this. Steps and rows are not merged to one axis: no sharding of the rows is one of the merged axis.
    """
    if nominal_size(left.shape[-1:]) > nominal_size(right.shape[-1:]):
        return _columns_by_columns(_swapped(equation), right, left).T
    rows = (*range(left.ndim - 1),)
    columns = lax.optimization_barrier(lax.transpose(left, (left.ndim - 1, *rows)))
    return _product(equation, columns, right, (((*(axis + 1 for axis in rows),), rows), ((), ())))


def _swapped(equation: Equation) -> Equation:
    """The product with its two sides the other way round, sharded accordingly."""
    sharding = equation.params["out_sharding"]
    if sharding is None:
        return equation
    columns_first = NamedSharding(sharding.mesh, PartitionSpec(*reversed([*sharding.spec, None, None][:2])))
    return replace(equation, params={**equation.params, "out_sharding": columns_first})


def _product(equation: Equation, left: Any, right: Any, dimension_numbers: Any) -> Any:
    params = {**equation.params, "dimension_numbers": dimension_numbers}
    return replace(equation, params=params).evaluate(left, right)[0]
