"""A step's program: its equations between inputs and outputs, grouped by their role in the loop over time."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from jax.extend import source_info_util

from rnnscan._util.effects import ordered
from rnnscan.ir.jaxprs import all_equations, inner_jaxprs
from rnnscan.ir.traits import Kind, Traits, traits_for, traits_of


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


class Origin(NamedTuple):
    """Where an equation was traced, and the settings of JAX there.

    Attributes:
        settings: the settings, such as `jax.threefry_partitionable`, `compute_on` and XLA metadata. None: those that
            hold where the equation is evaluated.
        traceback: the lines that made it; None: unknown.
        name_stack: the `jax.named_scope`s around it.
        call: the traceback of the call around it; None: there is none.
    """

    settings: Any = None
    traceback: Any = None
    name_stack: Any = source_info_util.NameStack()
    call: Any = None

    @property
    def scope(self) -> str:
        """The path of the named scopes."""
        return str(self.name_stack)

    @property
    def place(self) -> str:
        """The user's line, as JAX's messages write it. JAX's own functions are traced once, for lines of all users."""
        places = (
            source_info_util.summarize(source_info_util.SourceInfo(traceback, self.name_stack))
            for traceback in (self.traceback, self.call)
            if traceback is not None
        )
        return next(filter(None, places), "")

    @property
    def source(self) -> Any:
        """The origin as jaxprs have it."""
        return source_info_util.SourceInfo(self.traceback, self.name_stack)

    def within(self, name_stack: Any) -> "Origin":
        """The origin within the named scopes of a caller."""
        return self._replace(name_stack=name_stack + self.name_stack) if len(name_stack) else self

    def scoped(self, name: str) -> "Origin":
        """The origin with one more named scope, the innermost."""
        return self._replace(name_stack=self.name_stack.extend(name))

    def run(self, function: Callable[..., Any], /, *operands: Any, **params: Any) -> Any:
        """Call a function as if it were called at the origin, as `jax.core.eval_jaxpr` does."""
        scopes = self.name_stack
        name_stack = source_info_util.current_name_stack() + scopes if len(scopes) else None  # None: as it is.
        settings = nullcontext() if self.settings is None else self.settings.manager
        with source_info_util.user_context(self.traceback, name_stack=name_stack), settings:
            return function(*operands, **params)


_NOWHERE = Origin()


_WIDE = frozenset(map(np.dtype, ("float64", "complex128", "int64", "uint64")))


@dataclass(frozen=True, eq=False)
class Equation:
    """One operation: `outputs = primitive(inputs)`. With `effects` it does more than compute its outputs."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    jax_effects: Collection[Any] = ()
    origin: Origin = _NOWHERE

    @cached_property
    def effects(self) -> Collection[Any]:
        """The effects for which it must stay, in its order. Collectives have none here, and have some in JAX."""
        return ordered(self.jax_effects)

    @property
    def scope(self) -> str:
        """The path of `jax.named_scope` around it, for pictures."""
        return self.origin.scope

    @cached_property
    def name(self) -> str:
        """The name of the primitive."""
        return str(self.primitive.name)

    @cached_property
    def traits(self) -> Traits:
        """The traits of the primitive, for operands and results of these dtypes."""
        dtypes = (tuple(getattr(atom, "dtype", None) for atom in atoms) for atoms in (self.inputs, self.outputs))
        return traits_for(self.name, *dtypes)

    @cached_property
    def kind(self) -> Kind:
        """What the primitive does with elements."""
        return traits_of(self.primitive.name).kind

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The inputs that are not known while tracing."""
        return tuple(values_of(self.inputs))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of its primitive, and of those in the bodies of a loop, branches or a call."""
        within = (eqn for body in inner_jaxprs(self.params) for eqn in all_equations(body))
        return frozenset({self.name, *(str(eqn.primitive.name) for eqn in within)})

    @property
    def operation(self) -> Hashable:
        """The operation without its operands: equal where primitive, params and settings are equal."""
        operation = (self.primitive, self.origin.settings, *sorted(self.params.items()))
        try:
            hash(operation)
        except TypeError:  # Some parameters are lists, or functions of lists.
            return id(self)
        return operation

    @cached_property
    def _is_wide(self) -> bool:
        return any(getattr(atom, "dtype", None) in _WIDE for atom in (*self.inputs, *self.outputs))

    @property
    def is_wider_than_allowed(self) -> bool:
        """Whether it was traced within `jax.enable_x64`, which does not hold now. JAX's contexts do not tell."""
        return self._is_wide and not jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def evaluate(self, *operands: Any) -> list[Any]:
        """Compute the outputs, under the settings and with the source of the equation."""
        if self.is_wider_than_allowed:
            with jax.enable_x64(True):
                return self.evaluate(*operands)
        results = self.origin.run(self.primitive.bind, *operands, **self.primitive.get_bind_params(self.params))
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

    @cached_property
    def maker(self) -> dict[Atom, Equation]:
        """The equation that makes each value."""
        return {output: equation for equation in self.equations for output in equation.outputs}

    @cached_property
    def fixed(self) -> set[Value]:
        """The values that are the same at every step."""
        return determined(self.equations, self.invariant)


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


def determined(equations: Iterable[Equation], inputs: Iterable[Value]) -> set[Value]:
    """The inputs, and every value that depends only on them."""
    known = set(inputs)
    for equation in equations:
        if known.issuperset(equation.reads):
            known.update(equation.outputs)
    return known


def total_bytes(values: Iterable[Value]) -> int:
    """The bytes of all values."""
    return sum(value.nbytes for value in values)


def operation(primitive: Any, params: dict[str, Any], inputs: Sequence[Atom], origin: Origin = _NOWHERE) -> Equation:
    """An equation whose result has the type that its primitive gives it."""
    traced = jax.make_jaxpr(partial(primitive.bind, **params))(*(atom.aval for atom in inputs))
    return Equation(primitive, params, tuple(inputs), tuple(map(Value, traced.out_avals)), traced.effects, origin)


def concatenated(atoms: Sequence[Atom], axis: int, origin: Origin = _NOWHERE) -> Equation:
    """An equation that concatenates values along an axis."""
    return operation(lax.concatenate_p, {"dimension": axis % len(atoms[0].shape)}, atoms, origin)


def evaluate(equations: Iterable[Equation], values: dict[Value, Any]) -> None:
    """Run equations in order, and add their results to the values."""
    for equation in equations:
        results = equation.evaluate(*(read(atom, values) for atom in equation.inputs))
        values.update(zip(equation.outputs, results, strict=True))


def read(atom: Atom, values: Mapping[Value, Any]) -> Any:
    """The value of an atom."""
    return atom.value if isinstance(atom, Constant) else values[atom]
