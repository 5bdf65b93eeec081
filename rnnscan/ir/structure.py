"""The structure of a program: a key that is equal for programs that do the same operations on the same values."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from jax.extend import core

from rnnscan._util.messages import is_key
from rnnscan.ir.program import Atom, Constant, Equation, Program, Value
from rnnscan.ir.rules_of_jax import has_rule_of_jax


# A primitive, its parameters, the context that counts, the operands and the results.
_Operation: TypeAlias = tuple[Any, Mapping[str, Any], Hashable, Sequence[Any], Sequence[Any]]

# What must be equal: what equations do, the sources of derivative rules too, or functions themselves.
Like: TypeAlias = Literal["work", "source", "function"]


def structure_of(program: Program, inputs: Sequence[Value], outputs: Sequence[Atom]) -> Hashable:
    """The structure of a program.

    Args:
        program: the program.
        inputs: its inputs, in the order that counts.
        outputs: its outputs, likewise.
    """
    numbers = _Numbers(like="work")
    operations = (
        (each.primitive, each.params, each.origin.settings, each.inputs, each.outputs) for each in program.equations
    )
    return numbers.add(inputs), numbers.number(operations), numbers.read(outputs)


def structure_of_operation(equation: Equation) -> Hashable:
    """A key that is equal for equations that do the same to their operands.

    Jaxprs are compared by structure, and their constants by value. Rules for derivatives cannot be compared, so the
    places in the source of the functions that have them are.

    Args:
        equation: the equation.
    """
    return _structure_of_operation(equation.primitive, equation.params, like="source")


def _structure_of_operation(primitive: Any, params: Mapping[str, Any], *, like: Like) -> Hashable:
    source = None
    if like != "work" and primitive.name.startswith("custom_"):
        bodies = [getattr(value, "jaxpr", None) for value in params.values()]
        source = tuple(str(body.debug_info.func_src_info) for body in bodies if body is not None)
        if has_rule_of_jax(params):
            like = "source"
    return primitive, source, _structure_of_parameter(params, like=like)


def key_of_step(program: Program) -> Hashable:
    """A key that is equal for steps that do the same in the same named scopes. Functions equal themselves alone."""
    numbers = _Numbers(like="function")
    operations = (
        (each.primitive, each.params, (each.origin.settings, each.scope), each.inputs, each.outputs)
        for each in program.equations
    )
    types = tuple(map(numbers.add, (program.invariant, program.known, program.carry)))
    outputs = (program.new_carry, program.summed, program.stacked)
    return types, numbers.number(operations), *map(numbers.read, outputs)


def key_of_jaxpr(closed: core.ClosedJaxpr) -> Hashable:
    """As `key_of_step`, of a jaxpr."""
    return _structure_of_parameter(closed, like="function")


class _Numbers:
    """Numbers values in the order in which they are added."""

    def __init__(self, *, like: Like) -> None:
        self._like = like
        self._constant = _structure_of_number if like == "function" else structure_of_array
        self._numbers: dict[Any, int] = {}

    def add(self, values: Iterable[Any]) -> Hashable:
        """Number values; their types."""
        values = [*values]
        self._numbers.update((value, number) for number, value in enumerate(values, len(self._numbers)))
        return tuple(value.aval for value in values)

    def number(self, equations: Iterable[_Operation]) -> Hashable:
        """The structure of equations, whose results are numbered."""
        return tuple(
            (_structure_of_operation(primitive, params, like=self._like), context, self.read(inputs), self.add(outputs))
            for primitive, params, context, inputs, outputs in equations
        )

    def read(self, atoms: Iterable[Any]) -> Hashable:
        """The numbers of values, and the values of constants."""
        return tuple(map(self._read, atoms))

    def _read(self, atom: Any) -> Hashable:
        if isinstance(atom, Constant | core.Literal):
            return self._constant(atom.value if isinstance(atom, Constant) else atom.val)
        return self._numbers[atom]


def structure_of_array(array: Any) -> Hashable:
    """A key that is equal for arrays of the same type and the same values, bit for bit."""
    if isinstance(array, jax.core.Tracer):
        return id(array)
    if isinstance(array, jax.Array) and is_key(array):
        return "key", jax.random.key_impl(array), structure_of_array(jax.random.key_data(array))
    concrete = np.asarray(array)
    return "array", concrete.shape, concrete.dtype, concrete.tobytes()


def _structure_of_number(value: Any) -> Hashable:
    """A key of a constant. Arrays equal themselves alone: they may be large, on a device, or of keys."""
    return id(value) if isinstance(value, jax.Array) or np.shape(value) else structure_of_array(value)


def _structure_of_parameter(value: Any, *, like: Like) -> Hashable:
    """A key of an equation's parameter.

    Functions, such as rules for derivatives, are told apart by type alone, or equal themselves alone: "function". So
    are objects that equal nothing but themselves, where "work" is compared: a call holds its rule in one, and each
    trace makes another.
    """
    if isinstance(value, core.ClosedJaxpr):
        consts = tuple(_structure_of_const(const, like=like) for const in value.consts)
        return "closed", consts, structure_of_jaxpr(value.jaxpr, like=like)
    if isinstance(value, core.Jaxpr):
        return structure_of_jaxpr(value, like=like)
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda item: str(item[0]))
        return "mapping", tuple((key, _structure_of_parameter(each, like=like)) for key, each in pairs)
    if isinstance(value, tuple | list):
        return type(value).__name__, tuple(_structure_of_parameter(each, like=like) for each in value)
    if isinstance(value, np.ndarray):
        return structure_of_array(value)
    if hasattr(value, "call_wrapped") or (callable(value) and not isinstance(value, type)):
        return id(value) if like == "function" else ("function", type(value).__qualname__)
    if like == "work" and _equals_only_itself(value):
        return "object", type(value).__qualname__
    try:
        hash(value)
    except TypeError:
        return id(value) if like == "function" else ("object", type(value).__qualname__, repr(value))
    # 1 equals True, and 0.0 equals -0.0.
    return (type(value), str(value), value) if like == "function" else value


def _equals_only_itself(value: Any) -> bool:
    kind: Any = type(value)
    return not isinstance(value, type) and kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__


def _structure_of_const(array: Any, *, like: Like) -> Hashable:
    if like == "work":
        return str((getattr(array, "shape", ()), getattr(array, "dtype", type(array))))
    return id(array) if like == "function" else structure_of_array(array)


def structure_of_jaxpr(jaxpr: Any, *, like: Like = "source") -> Hashable:
    """The structure of a jaxpr, with the numbers of its literals, by the rules of `structure_of_operation`."""
    numbers = _Numbers(like=like)
    numbers.add(jaxpr.constvars)
    settings = ((eqn.ctx, str(eqn.source_info.name_stack)) if like == "function" else eqn.ctx for eqn in jaxpr.eqns)
    equations = zip(jaxpr.eqns, settings, strict=True)
    operations = ((eqn.primitive, eqn.params, setting, eqn.invars, eqn.outvars) for eqn, setting in equations)
    return numbers.add(jaxpr.invars), numbers.number(operations), numbers.read(jaxpr.outvars)
