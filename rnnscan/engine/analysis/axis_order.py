"""The order of the axes in which a loop carries its leaves: one with many elements is last.

XLA for the CPU vectorizes a loop over the last axis alone (`SHORT_ROWS` of the cost model). The state of S6, `(N, D,
S)`, has 16 elements there. A step gains where it has functions of values as large as the leaf.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.costs.machine import SHORT_ROWS, SLOW_IN_SHORT_ROWS, Machine
from rnnscan.ir.contraction import Contraction, contraction_of
from rnnscan.ir.dataflow import needed, partition
from rnnscan.ir.program import Atom, Constant, Equation, Value, determined, operation
from rnnscan.ir.traits import Kind


# The largest ratio of a step's estimated time in another order to that as written.
_LARGEST_RATIO = 0.9


@dataclass(frozen=True)
class AxisOrder:
    """A step with the leaves of its carry in the order of axes in which a loop carries them.

    Attributes:
        step: the step.
        axes: by position in the carry of a step, the axes of the leaf in the order of the loop; others are as they are.
    """

    step: FlatStep
    axes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def of(self, carry: Sequence[Any]) -> list[Any]:
        """The leaves as the loop carries them."""
        return [jnp.transpose(leaf, self.axes[i]) if i in self.axes else leaf for i, leaf in enumerate(carry)]

    def undone(self, carry: Sequence[Any]) -> list[Any]:
        """The leaves that the loop carries, as the step has them."""
        return [jnp.transpose(leaf, _inverse(self.axes[i])) if i in self.axes else leaf for i, leaf in enumerate(carry)]


def long_axes_last(step: FlatStep, machine: Machine) -> AxisOrder:
    """The step with leaves of its carry in another order of axes, where that pays and moves no values at each step."""
    order: dict[int, tuple[int, ...]] = {}
    for shape in dict.fromkeys(leaf.shape for leaf in step.carry if jnp.issubdtype(leaf.dtype, jnp.floating)):
        axes = _long_axis_last(shape)
        if axes is None:
            continue
        leaves = [index for index, leaf in enumerate(step.carry) if leaf.shape == shape]
        try:
            reordered = _Reordering(step, leaves, axes).run()
        except _NoOrderError:
            continue
        if _time(reordered, machine) <= _LARGEST_RATIO * _time(step, machine):
            step = reordered
            order |= dict.fromkeys(leaves, axes)
    return AxisOrder(step, order)


def _time(step: FlatStep, machine: Machine) -> float:
    """The estimated time of what a step does at each step."""
    program = step.program
    varying = partition(needed(program.equations, program.outputs), program.fixed)[1]
    return machine.estimate(varying, program.fixed).nanoseconds


def _long_axis_last(shape: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The axes of a leaf with a long one last; None if its loops are fast as it is, or it has no long axis."""
    if not all(isinstance(size, int) for size in shape) or not shape or shape[-1] not in SHORT_ROWS:
        return None
    long = [axis for axis, size in enumerate(shape) if size >= SHORT_ROWS.stop]
    return (*(axis for axis in range(len(shape)) if axis != long[-1]), long[-1]) if long else None


class _NoOrderError(Exception):
    """Raised if a step cannot run in another order of axes."""


class _Reordering:
    """A step whose values of one rank, around some leaves of its carry, have their axes in another order.

    Args:
        step: the step.
        leaves: the leaves.
        axes: their axes, in the new order.
    """

    def __init__(self, step: FlatStep, leaves: Sequence[int], axes: tuple[int, ...]) -> None:
        program = step.program
        self._step, self._leaves, self._axes = step, leaves, axes
        self._place = _inverse(axes)
        self._maker = program.maker
        self._reordered: dict[Atom, Value] = {step.carry[index]: self._like(step.carry[index]) for index in leaves}
        self._as_before = {*program.inputs} - self._reordered.keys()  # The values that are there in the old order.
        self._equations: list[Equation] = []

    def run(self) -> FlatStep:
        """The step.

        Raises:
            _NoOrderError: if it has work for which there is no rule, or large functions that may lose.
        """
        step, program = self._step, self._step.program
        for equation in program.equations:
            if self._as_before.issuperset(equation.reads):
                self._emit(equation)
            else:
                self._reorder(equation)
        new_carry = tuple(
            self._in_order(atom) if index in self._leaves else self._in_old_order(atom)
            for index, atom in enumerate(step.new_carry)
        )
        stacked = (*map(self._in_old_order, step.y), *(self._reordered.get(atom, atom) for atom in step.kept))
        equations = tuple(needed(self._equations, [*new_carry, *stacked]))
        large = {*self._reordered.values()} - determined(equations, program.invariant)
        functions = {e.name for e in equations if e.traits.is_transcendental and not large.isdisjoint(e.outputs)}
        if not functions <= SLOW_IN_SHORT_ROWS:
            raise _NoOrderError  # With an expm1, a sine or an erf the gradient took up to 1.4 of the time.
        carry = tuple(self._reordered.get(leaf, leaf) for leaf in step.carry)
        return replace(
            step,
            program=replace(program, equations=equations, carry=carry, new_carry=new_carry, stacked=stacked),
            named={position: self._reordered.get(atom, atom) for position, atom in step.named.items()},
            saved=tuple(self._reordered.get(value, value) for value in step.saved),
        )

    def _reorder(self, equation: Equation) -> None:
        """Add an equation that reads values in the new order of axes."""
        contraction = contraction_of(equation)
        if self._is_elementwise(equation):
            self._elementwise(equation)
        elif equation.name == "broadcast_in_dim" and equation.params["sharding"] is None:
            self._broadcast(equation)
        elif equation.kind is Kind.REDUCE and equation.traits.is_linear and not equation.params.get("out_sharding"):
            # Sums only. The derivative of a maximum compares its operand with it. XLA makes both again, in two kernels,
            # and for two of 60 random steps they rounded differently in this order, for none as written.
            self._sum(equation)
        elif contraction is not None and equation.params["out_sharding"] is None:
            self._product(equation, contraction)
        else:
            raise _NoOrderError

    def _is_elementwise(self, equation: Equation) -> bool:
        """Whether an equation is elementwise in operands of the leaves' rank, and in scalars."""
        ranks = {len(atom.shape) for atom in equation.inputs}
        is_placed = any(value is not None for key, value in equation.params.items() if key.endswith("sharding"))
        return equation.traits.is_elementwise and ranks <= {0, len(self._axes)} and not (equation.effects or is_placed)

    def _elementwise(self, equation: Equation) -> None:
        inputs = tuple(map(self._in_order, equation.inputs))
        outputs = tuple(map(self._like, equation.outputs))
        self._emit(replace(equation, inputs=inputs, outputs=outputs))
        self._reordered.update(zip(equation.outputs, outputs, strict=True))

    def _sum(self, equation: Equation) -> None:
        axes = equation.params["axes"]
        self._check_order([axis for axis in self._axes if axis not in axes])
        params = {**equation.params, "axes": tuple(sorted(self._place[axis] for axis in axes))}
        self._emit(replace(equation, params=params, inputs=tuple(map(self._in_order, equation.inputs))))

    def _product(self, equation: Equation, contraction: Contraction) -> None:
        inputs, contracted, batch = [*equation.inputs], [*contraction.contracted], [*contraction.batch]
        for side, atom in enumerate(equation.inputs):
            if atom not in self._as_before:
                inputs[side] = self._in_order(atom)
                self._check_order([axis for axis in self._axes if axis in contraction.free[side]])
                contracted[side], batch[side] = (
                    tuple(self._place[axis] for axis in axes) for axes in (contracted[side], batch[side])
                )
                if batch[side] != tuple(range(len(batch[side]))):
                    raise _NoOrderError  # XLA would transpose the operand.
        params = {**equation.params, "dimension_numbers": (tuple(contracted), tuple(batch))}
        self._emit(replace(equation, params=params, inputs=tuple(inputs)))

    def _check_order(self, axes: Sequence[int]) -> None:
        """Axes that are no longer in order would have to be transposed at each step."""
        if [*axes] != sorted(axes):
            raise _NoOrderError

    def _in_order(self, atom: Atom) -> Atom:
        """A value of the leaves' rank with its axes in the new order; a scalar as it is."""
        if not atom.shape:
            return atom
        if isinstance(atom, Constant):
            raise _NoOrderError
        if atom not in self._reordered:
            self._make(atom)
        return self._reordered[atom]

    def _make(self, value: Value) -> None:
        """Compute a value in the new order of axes, that the step computes in the old one."""
        if value in self._step.program.fixed:  # Once, before the loop.
            transpose = self._transpose(value)
            self._emit(transpose)
            self._reordered[value] = transpose.outputs[0]
        elif value in self._maker:
            self._reorder(self._maker[value])
        if value not in self._reordered:
            raise _NoOrderError

    def _broadcast(self, equation: Equation) -> None:
        (operand,), (result,) = equation.inputs, equation.outputs
        if len(result.shape) != len(self._axes):
            raise _NoOrderError
        places = tuple(self._place[axis] for axis in equation.params["broadcast_dimensions"])
        if len(places) == len(self._axes):
            operand, places = self._in_order(operand), tuple(sorted(places))
        self._check_order(places)
        self._reordered[result] = self._like(result)
        params = {**equation.params, "shape": self._reordered[result].shape, "broadcast_dimensions": places}
        self._emit(replace(equation, params=params, inputs=(operand,), outputs=(self._reordered[result],)))

    def _in_old_order(self, atom: Atom) -> Atom:
        if isinstance(atom, Value) and atom not in self._as_before:
            raise _NoOrderError
        return atom

    def _transpose(self, value: Value) -> Equation:
        return operation(lax.transpose_p, {"permutation": self._axes}, [value])

    def _like(self, value: Value) -> Value:
        """A value of the same type, with its axes in the new order."""
        return self._transpose(value).outputs[0]

    def _emit(self, equation: Equation) -> None:
        self._equations.append(equation)
        self._as_before.update(equation.outputs)


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axes.index(place) for place in range(len(axes)))
