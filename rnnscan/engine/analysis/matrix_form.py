"""The form of a value that depends on a matrix state: `decay * S + sum of u w^T + sum of c * R`.

The factors are free of S. An array that reads them has the rank of S, with size 1 along the axes that it is constant
over. With the key axis K and the value axis V of S,

    decay (..., K, 1)    u (..., K, 1)    w (..., 1, V)    c (..., K, 1)    R (..., K, V), the same at every step

R comes from resets, which select an initial state: `where(reset, R, S)` has decay 0 and c = 1 in the rows with a reset.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax

from rnnscan.ir.program import Value


Values: TypeAlias = Mapping[Value, Any]


class NoFormError(Exception):
    """Raised where a step does not have the form; it says why."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A factor that is free of the state; compared by identity.

    Attributes:
        axes: the axes of the state that it may vary along.
        reads: the values that it is made of.
        make: makes it for one step.
        key: equal for factors with equal numbers, also for factors of two states. It names axes by their role.
    """

    axes: frozenset[int]
    reads: frozenset[Value]
    make: Callable[[Values], Any]
    key: Hashable


def combined(operation: Callable[..., Any], *factors: Factor, key: Hashable = None) -> Factor:
    """An elementwise operation on factors. `key` identifies an operation that is not a function of a module."""
    return Factor(
        frozenset().union(*(factor.axes for factor in factors)),
        frozenset().union(*(factor.reads for factor in factors)),
        lambda values: operation(*(factor.make(values) for factor in factors)),
        (operation if key is None else key, *(factor.key for factor in factors)),
    )


# Scalars broadcast to any rank.
ONE = Factor(frozenset(), frozenset(), lambda values: jnp.asarray(1.0, jnp.float32), 1)
ZERO = Factor(frozenset(), frozenset(), lambda values: jnp.asarray(0.0, jnp.float32), 0)


def product(left: Factor, right: Factor) -> Factor:
    """The product of two factors."""
    if left is ZERO or right is ZERO:
        return ZERO
    if left is ONE or right is ONE:
        return right if left is ONE else left
    return combined(jnp.multiply, left, right)


def quotient(numerator: Factor, denominator: Factor) -> Factor:
    """The quotient of two factors."""
    return ZERO if numerator is ZERO else combined(jnp.divide, numerator, denominator)


def total(left: Factor, right: Factor) -> Factor:
    """The sum of two factors."""
    if left is ZERO or right is ZERO:
        return right if left is ZERO else left
    return combined(jnp.add, left, right)


def negative(factor: Factor) -> Factor:
    """The negative of a factor."""
    return ZERO if factor is ZERO else combined(jnp.negative, factor)


@dataclass(frozen=True)
class Form:
    """A value of the form.

    Attributes:
        decay: the factor of the state.
        terms: the factors u and w of each outer product.
        matrices: the factors c and R of each matrix that is the same at every step, each matrix once.
    """

    decay: Factor = ZERO
    terms: tuple[tuple[Factor, Factor], ...] = ()
    matrices: tuple[tuple[Factor, Factor], ...] = ()

    @property
    def factors(self) -> list[Factor]:
        """All factors."""
        return [self.decay, *(factor for pair in (*self.terms, *self.matrices) for factor in pair)]

    def scaled(self, by: Factor, axes: "Axes", operation: Callable[[Factor, Factor], Factor] = product) -> "Form":
        """The form times a factor that is constant along the keys or along the values.

        A factor that is constant along both goes to w. So states with the same keys, written by different gates, have
        equal u.
        """
        if axes.values not in by.axes:
            scales_keys = axes.keys in by.axes
            return Form(
                operation(self.decay, by),
                tuple((operation(u, by), w) if scales_keys else (u, operation(w, by)) for u, w in self.terms),
                tuple((operation(c, by), matrix) for c, matrix in self.matrices),
            )
        if axes.keys in by.axes or self.decay is not ZERO or self.matrices:
            raise NoFormError("a factor of the state varies along its values")
        return Form(terms=tuple((u, operation(w, by)) for u, w in self.terms))

    def __add__(self, other: "Form") -> "Form":
        """The sum of two forms."""
        coefficients = dict[Factor, Factor]()
        for coefficient, matrix in (*self.matrices, *other.matrices):
            coefficients[matrix] = total(coefficients.get(matrix, ZERO), coefficient)
        matrices = tuple((coefficient, matrix) for matrix, coefficient in coefficients.items())
        return Form(total(self.decay, other.decay), (*self.terms, *other.terms), matrices)

    def __neg__(self) -> "Form":
        """The negative of a form."""
        return Form(
            negative(self.decay),
            tuple((u, negative(w)) for u, w in self.terms),
            tuple((negative(c), matrix) for c, matrix in self.matrices),
        )


@dataclass(frozen=True)
class Axes:
    """The two axes of the state's matrices.

    Attributes:
        keys: the axis that reads contract.
        values: the axis that they keep. Vectors are matrices with one value, along an axis after all of the leaf's.
        rank: the number of axes of the state, with that one.
    """

    keys: int
    values: int
    rank: int

    @property
    def batch(self) -> list[int]:
        """The other axes."""
        return [axis for axis in range(self.rank) if axis not in (self.keys, self.values)]

    @property
    def order(self) -> list[int]:
        """All axes: the batch, the keys, the values."""
        return [*self.batch, self.keys, self.values]

    def role(self, axis: int) -> Hashable:
        """The role of an axis, which is that of an axis of another state."""
        return "keys" if axis == self.keys else "values" if axis == self.values else self.batch.index(axis)


def select(predicate: Factor, on_false: Form, on_true: Form, axes: Axes) -> Form:
    """`where(predicate, on_true, on_false)`."""
    if axes.values in predicate.axes:
        raise NoFormError("a mask of the state varies along its values")

    def pick(true: Factor, false: Factor) -> Factor:
        return true if true is false else combined(jnp.where, predicate, true, false)

    return Form(
        pick(on_true.decay, on_false.decay),
        _picked(on_true.terms, on_false.terms, pick),
        _picked(on_true.matrices, on_false.matrices, pick),
    )


_Pairs: TypeAlias = Sequence[tuple[Factor, Factor]]


def _picked(
    on_true: _Pairs, on_false: _Pairs, pick: Callable[[Factor, Factor], Factor]
) -> tuple[tuple[Factor, Factor], ...]:
    """The pairs of both cases, each zero in the other case. Pairs with the same second factor become one."""
    rest = list(on_false)
    pairs = []
    for first, second in on_true:
        twin = next((pair for pair in rest if pair[1] is second), None)
        if twin is not None:
            rest.remove(twin)
        pairs.append((pick(first, ZERO if twin is None else twin[0]), second))
    return (*pairs, *((pick(ZERO, first), second) for first, second in rest))


def placed(array: Any, target: Sequence[int], rank: int) -> Any:
    """An array whose axes are these axes of the state, with size 1 along the others."""
    order = sorted(range(len(target)), key=lambda axis: target[axis])
    array = lax.transpose(array, order)
    return lax.expand_dims(array, [axis for axis in range(rank) if axis not in target])
