"""Find matrix states: carry leaves `S' = a * S + k v^T` that are read by contractions `q^T S` only.

The equations between a state and its reads are followed one by one, each by its rule on `Form`. What they read besides
the state, such as q, k, v and a, must not depend on it, neither in the same step nor over steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan._util.dtypes import promoted
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.matrix_form import (
    ONE,
    Axes,
    Factor,
    Form,
    NoFormError,
    combined,
    placed,
    product,
    quotient,
    select,
)
from rnnscan.ir.contraction import Contraction, contraction_of
from rnnscan.ir.dataflow import depending, needed
from rnnscan.ir.program import Atom, Constant, Equation, Value, concrete, is_zero, read, values_of


_WIDE = (jnp.float32, jnp.float64)


@dataclass(frozen=True, eq=False)
class Read:
    """A contraction of the state's keys with a query.

    Attributes:
        form: the state times the query. The sum of it over the keys is read.
        summed: axes of the state that are summed besides the keys.
        order: the other axes of the state, in the order of the result.
        result: the value that is read.
    """

    form: Form
    summed: tuple[int, ...]
    order: tuple[int, ...]
    result: Value

    def finish(self, total: Any, axes: Axes) -> Any:
        """The result at every step, from the sum over the keys `(T, ..., V)`, with the axes of the batch in between."""
        place = {axis: place for place, axis in enumerate([*axes.batch, axes.values], start=1)}
        total = total.sum([place[axis] for axis in self.summed], keepdims=True)
        rest = [axis for axis in place if axis not in self.order]
        total = lax.transpose(total, [0, *(place[axis] for axis in (*self.order, *rest))])
        return total.reshape(total.shape[0], *self.result.shape).astype(self.result.dtype)


@dataclass(frozen=True, eq=False)
class MatrixState:
    """A carry leaf with the form.

    Attributes:
        index: its position in `Program.carry`.
        leaf: its value before the step.
        axes: its keys and values.
        update: the form of its value after the step.
        reads: its reads.
        inside: the values between the state and its reads.
    """

    index: int
    leaf: Value
    axes: Axes
    update: Form
    reads: tuple[Read, ...]
    inside: frozenset[Value]

    @property
    def needs(self) -> frozenset[Value]:
        """The values that its factors are made of."""
        factors = [factor for form in (self.update, *(read.form for read in self.reads)) for factor in form.factors]
        return frozenset().union(*(factor.reads for factor in factors))

    @property
    def decays_per_key(self) -> bool:
        """Whether each key has its own decay."""
        return self.axes.keys in self.update.decay.axes

    @property
    def in_words(self) -> str:
        """Its keys, its values and its decays, for reports."""
        keys, values = (self.leaf.shape[axis] for axis in (self.axes.keys, self.axes.values))
        one_or_none = "no decay" if self.update.decay is ONE else "one decay for all keys"
        decays = "a decay for each key" if self.decays_per_key else one_or_none
        return f"{keys} keys along axis {self.axes.keys}, {values} values along axis {self.axes.values}, {decays}"

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of its matrices, in the order of the leaf's axes."""
        return (*self.leaf.shape, *(1,) * (self.axes.rank - len(self.leaf.shape)))

    @property
    def key_type(self) -> tuple[Any, ...]:
        """The sizes of the batch axes, the number of keys, and the dtype."""
        shape = self.leaf.shape
        return (*(shape[axis] for axis in self.axes.batch), shape[self.axes.keys], self.leaf.dtype)


def find_state(step: FlatStep, index: int, *, least: int, as_vectors: bool = False) -> MatrixState:
    """The form of a carry leaf.

    Args:
        step: the step.
        index: the position of the leaf in the carry.
        least: the least number of keys and of values.
        as_vectors: whether its matrices have one value, and no axis for it.

    Returns:
        The state.

    Raises:
        NoFormError: if it does not have the form.
    """
    leaf = step.carry[index]
    if leaf.dtype not in _WIDE:
        raise NoFormError(f"its dtype is {leaf.dtype}, which every step rounds to")
    large = [axis for axis, size in enumerate(leaf.shape) if isinstance(size, int) and size >= least]
    rank = len(leaf.shape) + as_vectors
    all_values = [rank - 1] if as_vectors else large
    pairs = [Axes(keys, values, rank) for keys in large for values in all_values if keys != values]
    if not pairs:
        raise NoFormError(f"it has no two axes of at least {least}")
    failures = []
    for axes in pairs:
        follower = _Follower(step, index, axes)
        try:
            return follower.state()
        except NoFormError as error:
            failures.append((follower.followed, str(error)))
    # The axes for which most equations could be followed are those that were meant.
    raise NoFormError(max(failures, key=lambda failure: failure[0])[1])


class _Follower:
    """Follows a state through the equations of a step, for given axes."""

    def __init__(self, step: FlatStep, index: int, axes: Axes) -> None:
        self._step, self._index, self._axes = step, index, axes
        self._leaf = step.carry[index]
        self._maker = step.program.maker
        self._dependent: dict[Atom, Form] = {self._leaf: Form(ONE)}
        self._later = later_values(step, index)
        self._factors: dict[tuple[Atom, tuple[int, ...]], list[Factor]] = {}
        self._reads: list[Read] = []
        # Views of the state with more axes of size 1, and the axis of the state that each of theirs is; None for those.
        self._views: dict[Atom, list[int | None]] = {}
        self.followed = 0

    def state(self) -> MatrixState:
        step, inside = self._step, self._dependent
        for equation in needed(step.program.equations, step.program.outputs):
            if any(atom in inside for atom in equation.inputs):
                self._follow(equation)
                self.followed += 1
        other_new_leaves = [atom for position, atom in enumerate(step.new_carry) if position != self._index]
        if not inside.keys().isdisjoint({*step.y, *other_new_leaves}):
            raise NoFormError("it is an output, or another part of the carry")
        if not inside.keys().isdisjoint(step.kept):
            raise NoFormError("a name is kept on it")
        new_leaf = step.new_carry[self._index]
        if new_leaf not in inside:
            raise NoFormError("its new value does not depend on it")
        if not self._reads:
            raise NoFormError("nothing reads it")
        if not inside[new_leaf].terms:
            raise NoFormError("no outer product is added to it")
        state = MatrixState(
            self._index,
            self._leaf,
            self._axes,
            inside[new_leaf],
            tuple(self._reads),
            frozenset(values_of(inside)),
        )
        if not state.needs.isdisjoint(self._later):
            raise NoFormError("its update, or a query, depends on a read of it")
        return state

    def _follow(self, equation: Equation) -> None:
        reading = self._read(equation)
        if reading is not None:
            self._reads.append(reading)
        elif equation.name == "broadcast_in_dim" and equation.inputs[0].shape == self._leaf.shape:
            self._view(equation)
        else:
            self._dependent[equation.outputs[0]] = self._rule(equation)

    def _view(self, equation: Equation) -> None:
        (state, *_), (view,) = equation.inputs, equation.outputs
        axes: list[int | None] = [None] * len(view.shape)
        for axis, place in enumerate(equation.params["broadcast_dimensions"]):
            axes[place] = axis
        if any(size != (1 if axis is None else state.shape[axis]) for axis, size in zip(axes, view.shape, strict=True)):
            raise NoFormError("it is broadcast")
        self._dependent[view], self._views[view] = self._dependent[state], axes

    def _rule(self, equation: Equation) -> Form:
        """The form of an equation's result."""
        operands, name = equation.inputs, equation.name
        if equation.outputs[0].shape != self._leaf.shape:
            raise NoFormError(f"{name} changes its shape")
        if name in ("add", "add_any"):
            return self._form(operands[0]) + self._form(operands[1])
        if name == "sub":
            return self._form(operands[0]) + -self._form(operands[1])
        if name == "neg":
            return -self._form(operands[0])
        if name == "copy" or (name == "convert_element_type" and self._keeps_digits(equation)):
            return self._form(operands[0])
        if name == "mul":
            return self._product(*operands)
        if name == "div" and operands[1] not in self._dependent:
            return self._form(operands[0]).scaled(self._factor(operands[1]), self._axes, quotient)
        if name == "select_n" and len(operands) == 3 and operands[0] not in self._dependent:
            predicate, on_false, on_true = operands
            return select(self._factor(predicate), self._form(on_false), self._form(on_true), self._axes)
        raise NoFormError(f"{name} is not followed")

    def _keeps_digits(self, equation: Equation) -> bool:
        # Products of integers wrap around, and quotients of them are rounded. Products of float16 overflow.
        (source,), (result,) = equation.inputs, equation.outputs
        is_update = source not in self._dependent and source.dtype == jnp.bfloat16
        return result.dtype in _WIDE and (source.dtype in _WIDE or is_update)

    def _product(self, left: Atom, right: Atom) -> Form:
        if left in self._dependent and right in self._dependent:
            raise NoFormError("both factors of a product depend on it")
        if left in self._dependent or right in self._dependent:
            state, by = (left, right) if left in self._dependent else (right, left)
            return self._form(state).scaled(self._factor(by), self._axes)
        for by, rest in ((left, right), (right, left)):
            if not self._is_matrix(self._factor(by)):
                return self._scaled(self._form(rest), by)
        raise NoFormError("an update is not an outer product")

    def _scaled(self, form: Form, by: Atom) -> Form:
        """A form times a value, by one part of it after the other."""
        for part in self._parts(by):
            form = form.scaled(part, self._axes)
        return form

    def _is_matrix(self, factor: Factor) -> bool:
        return factor.axes >= {self._axes.keys, self._axes.values}

    def _form(self, atom: Atom) -> Form:
        """The form of a value. One that is free of the state is a sum of outer products."""
        if atom in self._dependent:
            return self._dependent[atom]
        if is_zero(atom, self._maker):
            return Form()
        factor = self._factor(atom)
        matrix = Form(matrices=((ONE, factor),))
        if self._axes.values == len(self._leaf.shape) and atom in self._step.program.fixed:
            return matrix  # Of vectors.
        if not self._is_matrix(factor):
            return self._scaled(Form(terms=((ONE, ONE),)), atom)
        try:
            maker = self._maker.get(atom)
            if maker is None:
                raise NoFormError("an update is not an outer product")
            return self._rule(maker)
        except NoFormError:
            if atom in self._step.program.fixed or isinstance(atom, Constant):
                return matrix
            raise

    def _factor(self, atom: Atom) -> Factor:
        """A value that is free of the state, as small as it is before it is broadcast."""
        return reduce(product, self._parts(atom))

    def _parts(self, atom: Atom) -> list[Factor]:
        """The factors that a value is a product of."""
        if atom in self._dependent:
            raise NoFormError("it is combined with itself")
        if len(atom.shape) not in (0, len(self._leaf.shape)):
            raise NoFormError("a factor has another rank")
        return self._placed(atom, tuple(_varying(atom.shape)))

    def _placed(self, atom: Atom, target: tuple[int, ...]) -> list[Factor]:
        """The same for a value whose axes, without those of size 1, are these axes of the state."""
        if (atom, target) not in self._factors:
            self._factors[atom, target] = self._smaller(atom, target) or [self._whole(atom, target)]
        return self._factors[atom, target]

    def _smaller(self, atom: Atom, target: tuple[int, ...]) -> list[Factor]:
        """Factors with fewer axes than a value has, from which it is made; none if there are not."""
        maker = self._maker.get(atom)
        if maker is None or not maker.inputs:
            return []
        name, operand = maker.name, maker.inputs[0]
        place = dict(zip(_varying(atom.shape), target, strict=True))
        if name == "broadcast_in_dim":
            axes = (maker.params["broadcast_dimensions"][axis] for axis in _varying(operand.shape))
            return self._placed(operand, tuple(place[axis] for axis in axes))
        if name in ("reshape", "squeeze"):
            is_view = _varying_sizes(operand.shape) == _varying_sizes(atom.shape)
            return self._placed(operand, target) if is_view else []
        if maker.traits.is_elementwise and len(maker.inputs) == 1:
            inner = reduce(product, self._placed(operand, target))

            def evaluate(array: Any) -> Any:
                return self._widened(maker.evaluate(array.astype(operand.dtype))[0])

            smaller = combined(evaluate, inner, key=maker.operation)
            return [smaller] if len(inner.axes) < len(_varying(atom.shape)) else []
        if name == "mul" and atom.dtype in _WIDE:
            targets = (tuple(place[axis] for axis in _varying(operand.shape)) for operand in maker.inputs)
            left, right = map(self._placed, maker.inputs, targets)
            left_axes, right_axes = (
                reduce(product, parts).axes & {self._axes.keys, self._axes.values} for parts in (left, right)
            )
            return [*left, *right] if left_axes != right_axes else []
        return []

    def _whole(self, atom: Atom, target: Sequence[int]) -> Factor:
        """A value as it is."""
        shape, rank = _varying_sizes(atom.shape), self._axes.rank

        def make(values: Any) -> Any:
            return self._widened(placed(jnp.reshape(read(atom, values), shape), target, rank))

        number = None if atom.shape else concrete(atom)
        name = atom if number is None else (np.asarray(number).item(), atom.dtype)
        key = (name, *map(self._axes.role, target))
        return Factor(frozenset(target), frozenset(values_of([atom])), make, key)

    def _widened(self, array: Any) -> Any:
        """A bfloat16 factor in the dtype of a wider state. In a loop XLA multiplies in that dtype, too."""
        return array.astype(promoted(array.dtype, self._leaf.dtype)) if array.dtype == jnp.bfloat16 else array

    def _read(self, equation: Equation) -> Read | None:
        operand, contraction = equation.inputs[0], contraction_of(equation)
        is_sum = equation.name == "reduce_sum" and operand not in self._views
        if is_sum and self._axes.keys in equation.params["axes"]:
            form, query = self._dependent[operand], ONE
            summed, order = equation.params["axes"], [*range(len(self._leaf.shape))]
        elif contraction is not None and not all(atom in self._dependent for atom in equation.inputs):
            form, query, summed, order = self._contraction(equation, contraction)
        else:
            return None
        if self._axes.values in summed:
            raise NoFormError("a read sums over its values")
        return Read(
            form.scaled(query, self._axes),
            summed=tuple(axis for axis in summed if axis != self._axes.keys),
            order=tuple(axis for axis in order if axis not in summed),
            result=equation.outputs[0],
        )

    def _contraction(
        self, equation: Equation, contraction: Contraction
    ) -> tuple[Form, Factor, tuple[int, ...], list[int]]:
        """The state, the query, the axes of the state that a product contracts, and its axes in the result."""
        side = 0 if equation.inputs[0] in self._dependent else 1
        state, query = equation.inputs[side], equation.inputs[1 - side]
        contracted, batch = contraction.contracted, contraction.batch
        axes = self._views.get(state, [*range(len(state.shape))])
        summed, shared = ([axes[axis] for axis in group[side]] for group in (contracted, batch))
        if self._axes.keys not in summed or None in (*summed, *shared):
            raise NoFormError("a product contracts another axis of it")
        target = dict(zip((*contracted[1 - side], *batch[1 - side]), (*summed, *shared), strict=True))
        if prod(query.shape[axis] for axis in contraction.free[1 - side]) != 1:
            raise NoFormError("it is read by several queries in one product")
        factor = self._whole(query, [target[axis] for axis in _varying(query.shape)])
        kept = [axis for axis in axes if axis not in (*summed, *shared, None)]
        return self._dependent[state], factor, tuple(summed), [*shared, *kept]


def later_values(step: FlatStep, index: int) -> set[Value]:
    """A carry leaf and the values that depend on it, in the same step or later."""
    leaves = {step.carry[index]}
    while True:
        later = depending(step.program.equations, leaves)
        more = {leaf for leaf, new in zip(step.carry, step.new_carry, strict=True) if new in later}
        if more <= leaves:
            return later
        leaves |= more


def _varying_sizes(shape: Sequence[Any]) -> list[Any]:
    return [shape[axis] for axis in _varying(shape)]


def _varying(shape: Iterable[Any]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size != 1]
