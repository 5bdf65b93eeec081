"""From a function to a program: its equations in a row, with calls inlined, in values that are this module's own."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim
from jax.extend import core


# What a symbolic dimension of `jax.export`, most often the batch, counts as where the engine weighs sizes. Its choices
# are right for every size; for one far from this they may be slower, or take more memory.
_NOMINAL = 32


def nominal_size(shape: Iterable[Any]) -> int:
    """The number of elements, with 32 in place of each symbolic dimension."""
    return prod(_NOMINAL if is_symbolic_dim(size) else size for size in shape)


class Value:
    """What one equation computes or a program is given; compared by identity."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any) -> None:
        self.aval = aval

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.aval.dtype

    @property
    def nbytes(self) -> int:
        """Its size in bytes, a symbolic dimension counted as `nominal_size` does."""
        return nominal_size(self.aval.shape) * int(self.aval.dtype.itemsize)


@dataclass(frozen=True, eq=False)
class Constant:
    """A value that is known while tracing."""

    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(jnp.shape(self.value))

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return jnp.result_type(self.value)


Atom: TypeAlias = Value | Constant


def values_of(atoms: Iterable[Atom]) -> list[Value]:
    """Those of the atoms that are not known while tracing."""
    return [atom for atom in atoms if isinstance(atom, Value)]


@dataclass(frozen=True, eq=False)
class Equation:
    """One operation: `outputs = primitive(inputs)`."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]

    @property
    def operation(self) -> Hashable:
        """What it does, whatever it reads: equal where primitive and params are."""
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


def concatenated(atoms: Sequence[Atom], axis: int) -> Equation:
    """An equation that concatenates values along an axis."""
    types = [jax.ShapeDtypeStruct(atom.shape, atom.dtype) for atom in atoms]
    axis %= len(types[0].shape)
    aval = jax.eval_shape(lambda *parts: lax.concatenate(parts, axis), *types)
    return Equation(lax.concatenate_p, {"dimension": axis}, tuple(atoms), (Value(aval),))


@dataclass(frozen=True, eq=False)
class Program:
    """Equations in the order in which they can run.

    Attributes:
        inputs: what it is given.
        equations: the equations.
        outputs: what it returns.
        marked: the values that `mark` labelled and that its equations can see.
    """

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    marked: dict[str, Atom]


# The calls whose body means the same when its equations stand in the caller. Custom rules for derivatives stay whole:
# a gradient of a gradient differentiates these equations, and has to find the rules.
_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}
_MARK = "rnnscan mark "


def mark(value: Any, label: str) -> Any:
    """Label a value for `Program.marked`, from within any nested `jit` of the function that is traced."""

    def marked(value: Any) -> Any:
        return value

    marked.__name__ = _MARK + label
    return jax.jit(marked)(value)


def trace(function: Callable[..., Sequence[Any]], *arguments: Any) -> Program:
    """Trace a function of flat arguments that returns flat results.

    Args:
        function: takes arrays, returns a sequence of arrays.
        arguments: arrays or `jax.ShapeDtypeStruct`.

    Returns:
        Its program. Arrays that the function closes over are constants of it.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    inputs = tuple(Value(var.aval) for var in closed.jaxpr.invars)
    inliner = _Inliner()
    outputs = inliner.inline(closed.jaxpr, [Constant(const) for const in closed.consts], inputs)
    return Program(inputs, tuple(inliner.equations), tuple(outputs), inliner.marked)


def without_repeats(program: Program) -> Program:
    """The program with what it computes twice from the same values computed once.

    XLA does so within a loop, but not for what a loop leaves behind for each step: that would be stacked twice.
    """
    first: dict[Hashable, Equation] = {}
    same: dict[Atom, Atom] = {}
    equations = []
    for equation in program.equations:
        equation = replace(equation, inputs=tuple(same.get(atom, atom) for atom in equation.inputs))
        earlier = first.setdefault((equation.operation, equation.inputs), equation)
        if earlier is equation:
            equations.append(equation)
        else:
            same.update(zip(equation.outputs, earlier.outputs, strict=True))
    outputs = tuple(same.get(atom, atom) for atom in program.outputs)
    return replace(program, equations=tuple(equations), outputs=outputs)


class _Inliner:
    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.marked: dict[str, Atom] = {}

    def inline(self, jaxpr: Any, consts: Sequence[Atom], arguments: Sequence[Atom]) -> list[Atom]:
        atoms: dict[Any, Atom] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

        def read(var: Any) -> Atom:
            return Constant(var.val) if isinstance(var, core.Literal) else atoms[var]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(var) for var in eqn.invars])
            atoms.update(zip(eqn.outvars, results, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[Atom]) -> Sequence[Atom]:
        if str(eqn.params.get("name", "")).startswith(_MARK):
            self.marked[eqn.params["name"].removeprefix(_MARK)] = inputs[0]
            return inputs
        if eqn.primitive.name == "select_n" and all(case is inputs[1] for case in inputs[2:]):
            return inputs[1:2]  # Padding holds what does not change anyway.
        body = eqn.params.get(_INLINED.get(eqn.primitive.name, ""))
        if isinstance(body, core.ClosedJaxpr):
            return self.inline(body.jaxpr, [Constant(const) for const in body.consts], inputs)
        if body is not None:
            return self.inline(body, [], inputs)
        outputs = tuple(Value(var.aval) for var in eqn.outvars)
        self.equations.append(Equation(eqn.primitive, eqn.params, tuple(inputs), outputs))
        return outputs
