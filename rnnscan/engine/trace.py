"""From a function to a program: its equations in a row, with calls inlined, in values that are this module's own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax.extend import core


class Value:
    """What one equation computes or a program is given; compared by identity."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any) -> None:
        self.aval = aval


@dataclass(frozen=True, eq=False)
class Constant:
    """A value that is known while tracing."""

    value: Any


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

    def evaluate(self, *operands: Any) -> list[Any]:
        """Compute the outputs."""
        results = self.primitive.bind(*operands, **self.primitive.get_bind_params(self.params))
        return list(results) if self.primitive.multiple_results else [results]


@dataclass(frozen=True, eq=False)
class Program:
    """Equations in the order in which they can run."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]


# The calls whose body means the same when its equations stand in the caller. A rule for derivatives has done its work
# before a program is made (engine/backward.py differentiates the function, never the program).
_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}


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
    equations: list[Equation] = []
    outputs = _inline(closed.jaxpr, [Constant(const) for const in closed.consts], inputs, equations)
    return Program(inputs, tuple(equations), tuple(outputs))


def _inline(jaxpr: Any, consts: Sequence[Atom], arguments: Sequence[Atom], equations: list[Equation]) -> list[Atom]:
    atoms: dict[Any, Atom] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def read(var: Any) -> Atom:
        return Constant(var.val) if isinstance(var, core.Literal) else atoms[var]

    for eqn in jaxpr.eqns:
        inputs = [read(var) for var in eqn.invars]
        body = eqn.params.get(_INLINED.get(eqn.primitive.name, ""))
        if body is None:
            outputs: list[Atom] = [Value(var.aval) for var in eqn.outvars]
            equations.append(Equation(eqn.primitive, eqn.params, tuple(inputs), tuple(outputs)))  # type: ignore[arg-type]
        elif isinstance(body, core.ClosedJaxpr):
            outputs = _inline(body.jaxpr, [Constant(const) for const in body.consts], inputs, equations)
        else:
            outputs = _inline(body, [], inputs, equations)
        atoms.update(zip(eqn.outvars, outputs, strict=True))
    return [read(var) for var in jaxpr.outvars]
