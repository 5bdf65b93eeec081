"""A step's program: its equations between inputs and outputs, grouped by their role in the loop over time."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from rnnscan.ir.traits import Kind, Traits, traits_of


# The assumed size of a symbolic dimension of `jax.export`, usually the batch. Results are correct for every size;
# sizes far from this one may take more time or memory.
_NOMINAL = 32


def nominal_size(shape: Iterable[Any]) -> int:
    """The number of elements, with 32 in place of each symbolic dimension."""
    return prod(_NOMINAL if is_symbolic_dim(size) else size for size in shape)


class Value:
    """An input of a program or the result of an equation; compared by identity."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any) -> None:
        self.aval = aval

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its shape: numbers, or symbolic dimensions."""
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.aval.dtype

    @property
    def nbytes(self) -> int:
        """Its size in bytes, with symbolic dimensions counted by `nominal_size`."""
        return nominal_size(self.aval.shape) * int(self.aval.dtype.itemsize)


@dataclass(frozen=True, eq=False)
class Constant:
    """A value that is known while tracing."""

    value: Any

    @property
    def aval(self) -> Any:
        """Its type."""
        return jax.typeof(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(jnp.shape(self.value))

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return jnp.result_type(self.value)


Atom: TypeAlias = Value | Constant


def concrete(atom: Atom) -> Any:
    """The array or number of a constant; None for a value, and for a constant whose numbers JAX traces."""
    return atom.value if isinstance(atom, Constant) and not isinstance(atom.value, jax.core.Tracer) else None


def is_zero(atom: Atom, maker: Mapping[Atom, "Equation"]) -> bool:
    """Whether an atom is known to have only zeros: a constant, or one that is broadcast or cast.

    Args:
        atom: the atom.
        maker: value -> the equation that makes it.
    """
    number = concrete(atom)
    if number is not None:
        return not np.any(number)
    producer = maker.get(atom)
    return producer is not None and producer.kind in (Kind.SAME, Kind.VIEW) and is_zero(producer.inputs[0], maker)


def scatters_into_zeros(equation: "Equation | None", maker: Mapping[Atom, "Equation"]) -> bool:
    """Whether an equation is a `scatter_add` into zeros, of `indices` and `updates`.

    Args:
        equation: the equation; None: it is none.
        maker: value -> the equation that makes it.
    """
    return equation is not None and equation.primitive.name == "scatter-add" and is_zero(equation.inputs[0], maker)


@dataclass(frozen=True, eq=False)
class Equation:
    """One operation: `outputs = primitive(inputs)`. With `effects` it does more than compute its outputs.

    Collectives have none. `scope` is the path of `jax.named_scope` around it, for pictures.
    """

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    effects: Collection[Any] = ()
    scope: str = ""

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return str(self.primitive.name)

    @cached_property
    def traits(self) -> Traits:
        """The traits of the primitive, for operands and results of these dtypes."""
        return traits_of(self.primitive.name).of(self.inputs, self.outputs)

    @property
    def kind(self) -> Kind:
        """What the primitive does with elements."""
        return traits_of(self.primitive.name).kind

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The inputs that are not known while tracing."""
        return tuple(values_of(self.inputs))

    @property
    def operation(self) -> Hashable:
        """The operation without its operands: equal where primitive and params are equal."""
        operation = (self.primitive, *sorted(self.params.items()))
        try:
            hash(operation)
        except TypeError:  # Some parameters are lists, or functions of lists.
            return id(self)
        return operation

    def evaluate(self, *operands: Any) -> list[Any]:
        """Compute the outputs."""
        results = self.primitive.bind(*operands, **self.primitive.get_bind_params(self.params))
        return list(results) if self.primitive.multiple_results else [results]


@dataclass(frozen=True, eq=False)
class Program:
    """Equations in running order. A program without a loop has only `known` inputs and `stacked` outputs.

    Attributes:
        invariant: inputs that are the same at every step.
        known: inputs that are known for every step.
        carry: inputs that are the loop's carry.
        equations: the equations.
        new_carry: outputs that are the carry of the next step, in the order of `carry`.
        summed: outputs whose sum over the steps is wanted.
        stacked: outputs that are wanted at every step.
    """

    equations: tuple[Equation, ...]
    invariant: tuple[Value, ...] = ()
    known: tuple[Value, ...] = ()
    carry: tuple[Value, ...] = ()
    new_carry: tuple[Atom, ...] = ()
    summed: tuple[Atom, ...] = ()
    stacked: tuple[Atom, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        """All inputs."""
        return (*self.invariant, *self.known, *self.carry)

    @property
    def outputs(self) -> tuple[Atom, ...]:
        """All outputs."""
        return (*self.new_carry, *self.summed, *self.stacked)

    @property
    def maker(self) -> dict[Atom, Equation]:
        """The equation that makes each value."""
        return {output: equation for equation in self.equations for output in equation.outputs}


# A compiler pass.
Pass: TypeAlias = Callable[[Program], Program]


def values_of(atoms: Iterable[Atom]) -> list[Value]:
    """The atoms that are not known while tracing."""
    return [atom for atom in atoms if isinstance(atom, Value)]


def outputs_of(equations: Iterable[Equation]) -> list[Value]:
    """The results of equations."""
    return [output for equation in equations for output in equation.outputs]


def inputs_of(equations: Iterable[Equation]) -> list[Value]:
    """The values that equations read, with repeats."""
    return [value for equation in equations for value in equation.reads]


def total_bytes(values: Iterable[Value]) -> int:
    """The bytes of all values."""
    return sum(value.nbytes for value in values)


def concatenated(atoms: Sequence[Atom], axis: int) -> Equation:
    """An equation that concatenates values along an axis."""
    types = [jax.ShapeDtypeStruct(atom.shape, atom.dtype) for atom in atoms]
    axis %= len(types[0].shape)
    aval = jax.eval_shape(lambda *parts: lax.concatenate(parts, axis), *types)
    return Equation(lax.concatenate_p, {"dimension": axis}, tuple(atoms), (Value(aval),))


def evaluate(equations: Iterable[Equation], values: dict[Value, Any]) -> None:
    """Run equations in order, and add their results to the values."""
    for equation in equations:
        results = equation.evaluate(*(read(atom, values) for atom in equation.inputs))
        values.update(zip(equation.outputs, results, strict=True))


def read(atom: Atom, values: Mapping[Value, Any]) -> Any:
    """The value of an atom."""
    return atom.value if isinstance(atom, Constant) else values[atom]
