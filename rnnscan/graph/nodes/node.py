"""What queries of a graph give: nodes, captured arrays, and the inputs and outputs of a part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from rnnscan.graph.nodes.names import Name, Operand, operand, type_of
from rnnscan.ir.program import Origin, Program, Value


@dataclass(frozen=True)
class Node:
    """An operation of a graph.

    Attributes:
        id: its position in the graph.
        operation: the name of JAX's primitive, such as `dot_general`.
        inputs: what it reads, in order.
        outputs: the names of its results.
        input_types: the types of what it reads, as `jax.typeof` gives them.
        output_types: the types of its results.
        params: the primitive's parameters, read only.
        has_effects: whether it does more than compute its results, as a debug print does.
        evaluate: computes the results from the arrays that it reads.
        evaluate_here: computes them under the settings of JAX where it is called, such as another mesh, and not under
            those where it was traced.
    """

    id: int
    operation: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Name, ...]
    input_types: tuple[Any, ...]
    output_types: tuple[Any, ...]
    params: Mapping[str, Any]
    has_effects: bool
    evaluate: Callable[..., list[Any]] = field(repr=False, compare=False)
    evaluate_here: Callable[..., list[Any]] = field(repr=False, compare=False)


class SubgraphIO(NamedTuple):
    """The inputs and outputs of a part of a graph.

    Attributes:
        inputs: values that it reads and does not make.
        outputs: values that it makes, and that are read outside it or returned.
    """

    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]


class Captured(NamedTuple):
    """An array that the traced function closes over.

    Attributes:
        name: its name in the graph.
        shape: its shape.
        dtype: its dtype.
        nbytes: its size in bytes.
        array: the array.
    """

    name: Name
    shape: tuple[Any, ...]
    dtype: Any
    nbytes: int
    array: Any


def nodes_of(program: Program, names: Mapping[Value, Name]) -> tuple[Node, ...]:
    """The nodes of a program.

    Args:
        program: the program.
        names: the name of each value.
    """
    return tuple(
        Node(
            index,
            equation.name,
            tuple(operand(atom, names) for atom in equation.inputs),
            tuple(names[output] for output in equation.outputs),
            tuple(map(type_of, equation.inputs)),
            tuple(output.aval for output in equation.outputs),
            MappingProxyType(equation.params),
            bool(equation.effects),
            equation.evaluate,
            replace(equation, origin=Origin()).evaluate,
        )
        for index, equation in enumerate(program.equations)
    )
