"""Find matrix states: carry leaves `S' = a * S + k v^T` that are read by contractions `q^T S` only.

The equations between a state and its reads are followed one by one, each by its rule on `Form`. What they read besides
the state, such as q, k, v and a, must not depend on it, neither in the same step nor over steps.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan.engine.fission.flat_step import FlatStep
from rnnscan.engine.matrix_state.form import (
    ONE,
    Axes,
    Factor,
    Form,
    NoFormError,
    combined,
    placed,
    quotient,
    select,
)
from rnnscan.ir.dataflow import depending, needed
from rnnscan.ir.program import Atom, Constant, Equation, Value, is_zero, values_of


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

    def finish(self, total: Any) -> Any:
        """The result at every step, from the sum over the keys `(T, ...)`, which keeps their axis with size 1."""
        total = total.sum([axis + 1 for axis in self.summed], keepdims=True)
        rest = [axis for axis in range(total.ndim - 1) if axis not in self.order]
        total = lax.transpose(total, [0, *(axis + 1 for axis in (*self.order, *rest))])
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
        """Whether each key has a decay of its own."""
        decay = self.update.decay
        return decay is not None and self.axes.keys in decay.axes

    @property
    def batch_axes(self) -> list[int]:
        """The axes of the state besides keys and values."""
        return [axis for axis in range(self.axes.rank) if axis not in (self.axes.keys, self.axes.values)]


def find_state(step: FlatStep, index: int, fixed: Collection[Value], *, least: int) -> MatrixState:
    """The form of a carry leaf.

    Args:
        step: the step.
        index: the position of the leaf in the carry.
        fixed: the values that are the same at every step.
        least: the least number of keys and of values.

    Returns:
        The state.

    Raises:
        NoFormError: if it does not have the form.
    """
    leaf = step.carry[index]
    if leaf.dtype not in (jnp.float32, jnp.float64):
        raise NoFormError(f"its dtype is {leaf.dtype}, which every step rounds to")
    large = [axis for axis, size in enumerate(leaf.shape) if isinstance(size, int) and size >= least]
    pairs = [Axes(keys, values, len(leaf.shape)) for keys in large for values in large if keys != values]
    if not pairs:
        raise NoFormError(f"it has no two axes of at least {least}")
    failures = []
    for axes in pairs:
        follower = _Follower(step, index, axes, fixed)
        try:
            return follower.state()
        except NoFormError as error:
            failures.append((follower.followed, str(error)))
    # The axes for which most equations could be followed are those that were meant.
    raise NoFormError(max(failures, key=lambda failure: failure[0])[1])


class _Follower:
    """Follows a state through the equations of a step, for given axes."""

    def __init__(self, step: FlatStep, index: int, axes: Axes, fixed: Collection[Value]) -> None:
        self._step, self._index, self._axes, self._fixed = step, index, axes, fixed
        self._leaf = step.carry[index]
        self._maker = step.program.maker
        self._dependent: dict[Atom, Form] = {self._leaf: Form(ONE)}
        self._later = later_values(step, index)
        self._factors: dict[Atom, Factor] = {}
        self._reads: list[Read] = []
        self.followed = 0

    def state(self) -> MatrixState:
        step, inside = self._step, self._dependent
        for equation in needed(step.program.equations, step.program.outputs):
            if any(atom in inside for atom in equation.inputs):
                self._follow(equation)
                self.followed += 1
        others = [atom for position, atom in enumerate(step.new_carry) if position != self._index]
        if not inside.keys().isdisjoint({*step.y, *others}):
            raise NoFormError("it is an output, or another part of the carry")
        if not inside.keys().isdisjoint(step.kept):
            raise NoFormError("a name is kept on it")
        new_leaf = step.new_carry[self._index]
        if new_leaf not in inside:
            raise NoFormError("its new value does not depend on it")
        if not self._reads:
            raise NoFormError("nothing reads it")
        state = MatrixState(
            self._index,
            self._leaf,
            self._axes,
            inside[new_leaf],
            tuple(self._reads),
            frozenset(values_of(inside)),
        )
        if not state.needs.isdisjoint(self._later):
            raise NoFormError("its update, or a query, depends on what is read from it")
        return state

    def _follow(self, equation: Equation) -> None:
        read = self._read(equation)
        if read is not None:
            self._reads.append(read)
        else:
            self._dependent[equation.outputs[0]] = self._rule(equation)

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
        atoms = (*equation.inputs, *equation.outputs)
        wide = all(atom.dtype in (jnp.float32, jnp.float64) for atom in atoms)
        return wide or (
            equation.inputs[0] not in self._dependent and equation.outputs[0].dtype in (jnp.float32, jnp.float64)
        )

    def _product(self, one: Atom, other: Atom) -> Form:
        if one in self._dependent and other in self._dependent:
            raise NoFormError("it is multiplied by itself")
        if one in self._dependent or other in self._dependent:
            state, by = (one, other) if one in self._dependent else (other, one)
            return self._form(state).scaled(self._factor(by), self._axes)
        for by, rest in ((one, other), (other, one)):
            factor = self._factor(by)
            if not factor.axes >= {self._axes.keys, self._axes.values}:
                return self._form(rest).scaled(factor, self._axes)
        raise NoFormError("an update is no outer product")

    def _form(self, atom: Atom) -> Form:
        """The form of a value. One that is free of the state is a sum of outer products."""
        if atom in self._dependent:
            return self._dependent[atom]
        if is_zero(atom, self._maker):
            return Form()
        factor = self._factor(atom)
        if self._axes.values not in factor.axes:
            return Form(None, ((factor, ONE),))
        if self._axes.keys not in factor.axes:
            return Form(None, ((ONE, factor),))
        try:
            maker = self._maker.get(atom)
            if maker is None:
                raise NoFormError("an update is no outer product")
            return self._rule(maker)
        except NoFormError:
            if atom in self._fixed or isinstance(atom, Constant):
                return Form(None, (), ((ONE, factor),))
            raise

    def _factor(self, atom: Atom) -> Factor:
        """A value that is free of the state, as small as it is before it is broadcast."""
        if atom in self._dependent:
            raise NoFormError("it is combined with itself")
        if atom not in self._factors:
            self._factors[atom] = self._new_factor(atom)
        return self._factors[atom]

    def _new_factor(self, atom: Atom) -> Factor:
        rank = self._axes.rank
        if isinstance(atom, Constant):
            if len(atom.shape) not in (0, rank):
                raise NoFormError("a factor has another rank")
            return Factor(_varying(atom.shape), frozenset(), lambda _: jnp.asarray(atom.value))
        maker = self._maker.get(atom)
        if maker is not None and maker.name == "broadcast_in_dim" and len(atom.shape) == rank:
            return self._broadcast(maker)
        if maker is not None and maker.name in _UNARY and len(atom.shape) == rank:
            inner = self._factor(maker.inputs[0])
            return combined(lambda array: maker.evaluate(array)[0], inner)
        return _whole(atom, rank)

    def _broadcast(self, maker: Equation) -> Factor:
        (operand, *_), target = maker.inputs, maker.params["broadcast_dimensions"]
        if isinstance(operand, Constant) or len(operand.shape) == self._axes.rank:
            return self._factor(operand)
        axes = frozenset(target[axis] for axis in _varying(operand.shape))
        return Factor(axes, frozenset([operand]), lambda values: placed(values[operand], target, self._axes.rank))

    def _read(self, equation: Equation) -> Read | None:
        name = equation.name
        if name == "reduce_sum" and self._axes.keys in equation.params["axes"]:
            form, query = self._dependent[equation.inputs[0]], ONE
            summed, order = equation.params["axes"], [*range(self._axes.rank)]
        elif name == "dot_general" and not all(atom in self._dependent for atom in equation.inputs):
            form, query, summed, order = self._contraction(equation)
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

    def _contraction(self, equation: Equation) -> tuple[Form, Factor, tuple[int, ...], list[int]]:
        """The state, the query, the axes of the state that a product contracts, and its axes in the result."""
        side = 0 if equation.inputs[0] in self._dependent else 1
        state, query = equation.inputs[side], equation.inputs[1 - side]
        contracted, batch = equation.params["dimension_numbers"]
        if self._axes.keys not in contracted[side]:
            raise NoFormError("a product contracts another axis of it")
        target = dict(zip((*contracted[1 - side], *batch[1 - side]), (*contracted[side], *batch[side]), strict=True))
        free = [axis for axis in range(len(query.shape)) if axis not in target]
        if prod(query.shape[axis] for axis in free) != 1:
            raise NoFormError("it is read by several queries at once")
        shape = [query.shape[axis] for axis in range(len(query.shape)) if axis not in free]
        target_axes = [target[axis] for axis in range(len(query.shape)) if axis not in free]
        factor = _placed_factor(query, target_axes, self._axes.rank, shape)
        kept = [axis for axis in range(self._axes.rank) if axis not in (*contracted[side], *batch[side])]
        return self._dependent[state], factor, tuple(contracted[side]), [*batch[side], *kept]


def later_values(step: FlatStep, index: int) -> set[Value]:
    """A carry leaf and the values that depend on it, in the same step or later."""
    leaves = {step.carry[index]}
    while True:
        found = depending(step.program.equations, leaves)
        more = {leaf for leaf, new in zip(step.carry, step.new_carry, strict=True) if new in found}
        if more <= leaves:
            return found
        leaves |= more


_UNARY = frozenset({"convert_element_type", "neg", "exp", "log", "not", "copy", "logistic"})


def _varying(shape: Iterable[Any]) -> frozenset[int]:
    return frozenset(axis for axis, size in enumerate(shape) if size != 1)


def _whole(atom: Value, rank: int) -> Factor:
    if len(atom.shape) not in (0, rank):
        raise NoFormError("a factor has another rank")
    return Factor(_varying(atom.shape), frozenset([atom]), lambda values: values[atom])


def _placed_factor(atom: Atom, target: list[int], rank: int, shape: Any = None) -> Factor:
    """A value whose axes are these axes of the state."""
    shape = atom.shape if shape is None else shape
    axes = frozenset(target[axis] for axis in _varying(shape))
    get: Callable[[Any], Any] = (lambda _: atom.value) if isinstance(atom, Constant) else (lambda values: values[atom])
    return Factor(
        axes, frozenset(values_of([atom])), lambda values: placed(jnp.reshape(get(values), shape), target, rank)
    )
