"""The names of a graph's values: a base and a version, as Caffe2's blobs have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from rnnscan._util.messages import listing, nearest
from rnnscan.ir.program import Atom, Equation, Program, Value, outputs_of


class Name(NamedTuple):
    """The name of a value. An input has version 0, and each equation that writes the same base adds 1.

    Attributes:
        base: a label of `rnnscan.name`, the place of an argument or a result, or the name of an operation.
        version: 0 for an input, which is written without it: `x`. A result is written `gates.1`.

    Example:
        >>> import rnnscan as rs
        >>> print(rs.graph.Name("x"), rs.graph.Name("gates", 1))
        x gates.1
    """

    base: str
    version: int = 0

    def __str__(self) -> str:
        return f"{self.base}.{self.version}" if self.version else self.base


@dataclass(frozen=True, eq=False)
class Literal:
    """A number, or an array of numbers, that is known while tracing, in place of a name.

    Literals are equal if their dtypes, shapes and bits are: one NaN is another, and 0 is not -0.

    Attributes:
        value: the number.
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    @property
    def _bits(self) -> tuple[Any, ...]:
        value = np.asarray(self.value)
        return value.dtype, value.shape, value.tobytes()

    def __str__(self) -> str:
        return str(self.value)


# What an equation reads: a value, or a number.
Operand: TypeAlias = Name | Literal


def operand(atom: Atom, names: Mapping[Value, Name]) -> Operand:
    """The name of a value, or the number that a constant is."""
    if isinstance(atom, Value):
        return names[atom]
    return Literal(np.asarray(atom.value)[()])


def type_of(atom: Atom) -> Any:
    """The type of a value or of a number."""
    return atom.aval if isinstance(atom, Value) else jax.typeof(atom.value)


def is_name_equation(equation: Equation) -> bool:
    """Whether the equation does nothing but label its operand, as `rnnscan.name` does."""
    return equation.name == "name" and len(equation.outputs) == 1


def complete(program: Program, names: Mapping[Value, Name], bases: Mapping[Value, str]) -> dict[Value, Name]:
    """The names of a program's values. Named values keep their names, and others get the next version of their base.

    Args:
        program: the program.
        names: names of its inputs, and of some of its other values. It may hold names of values of other programs.
        bases: bases for values without a name. The base of any other value is the name of its operation.
    """
    results = [(output, equation) for equation in program.equations for output in equation.outputs]
    name_of = {value: names[value] for value in (*program.inputs, *outputs_of(program.equations)) if value in names}
    versions: dict[str, int] = {}
    for name in name_of.values():
        versions[name.base] = max(name.version, versions.get(name.base, 0))
    for value, equation in results:
        if value not in name_of:
            base = bases.get(value, equation.name)
            versions[base] = versions.get(base, 0) + 1
            name_of[value] = Name(base, versions[base])
    return name_of


class Directory:
    """Finds the values of a graph by their names, which users give as `Name` or as text.

    Args:
        names: the name of each value, in the order of the graph.
    """

    def __init__(self, names: Mapping[Value, Name]) -> None:
        self._exact: dict[Name, Value] = {}
        self._spelled: dict[str, list[Name]] = {}
        self._latest: dict[str, Name] = {}
        for value, name in names.items():
            self._exact[name] = value
            self._spelled.setdefault(str(name), []).append(name)
            if name.version >= self._latest.get(name.base, name).version:
                self._latest[name.base] = name

    def find(self, function: str, name: Name | str) -> Value:
        """The value of a name. Text is the name as it is written, else the base of the latest version.

        Raises:
            ValueError: if there is none, or if two names are written so.
        """
        if isinstance(name, Name):
            spelled = [name] if name in self._exact else []
        else:
            spelled = self._spelled.get(name, []) or [self._latest[base] for base in [name] if base in self._latest]
        if len(spelled) == 1:
            return self._exact[spelled[0]]
        if spelled:
            raise ValueError(
                f"graph.{function}: a name must tell one value; got {name!r}, which {len(spelled)} values have. "
                f"Pass one of {', '.join(map(repr, spelled))}."
            )
        raise ValueError(
            f"graph.{function}: the graph has no value {str(name)!r}.{nearest(str(name), self._spelled)} "
            f"It has {listing(_few(self._spelled))}."
        )


def _few(names: Iterable[str], most: int = 12) -> list[str]:
    every = list(names)
    return every if len(every) <= most else [*every[:most], f"and {len(every) - most} more"]
