"""The diagram of a program: a box for each argument, operation and result, and an arrow for each value that is read."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.messages import describe
from rnnscan.graph.draw.colors import KEPT, KEPT_AT_SOME, OFFLOADED
from rnnscan.graph.draw.diagram import Arrow, Box, Diagram
from rnnscan.graph.draw.operations import text_of
from rnnscan.graph.draw.text import printable, shortened
from rnnscan.ir.program import Atom, Constant, Equation, Value
from rnnscan.ir.traits import Kind


@dataclass(frozen=True)
class Content:
    """What a diagram is drawn from.

    Attributes:
        equations: the operations, in running order.
        arguments: the name of each argument.
        results: place of each result -> its value.
        changed: the places of results that are the new values of arguments. They are written with a prime.
        names: names of values made by operations: labels, and what a tooltip calls them.
        labels: the labels of `rnnscan.name` to write under an operation, by value.
        kinds: the kind of work that makes each value; empty if there are no kinds.
        keeping: what happens to values between the passes, as in `Arrow.keeping`.
        facts: more to say about a value in the tooltip of its box.
    """

    equations: Sequence[Equation]
    arguments: Mapping[Value, str]
    results: Mapping[str, Atom]
    names: Mapping[Value, str]
    changed: Collection[str] = ()
    labels: Mapping[Value, str] = field(default_factory=dict)
    kinds: Mapping[Value, str] = field(default_factory=dict)
    keeping: Mapping[Value, str] = field(default_factory=dict)
    facts: Mapping[Value, str] = field(default_factory=dict)


def diagram_of(content: Content) -> Diagram:
    """The diagram of a program.

    Args:
        content: the program, with names, kinds and what is kept.
    """
    boxes: list[Box] = []
    arrows: list[Arrow] = []
    maker: dict[Value, str] = {}
    value_ids: dict[Value, str] = {}

    def read(atoms: Iterable[Atom], target: str) -> None:
        for value in dict.fromkeys(atom for atom in atoms if isinstance(atom, Value)):
            keeping = content.keeping.get(value, "")
            words = f"{_name(value, content)}: {_type(value)}" + (f", {keeping}" if keeping else "")
            arrows.append(Arrow(maker[value], target, value_ids[value], printable(words), keeping))

    def add(values: Iterable[Value], box: Box) -> None:
        boxes.append(box)
        for index, value in enumerate(values):
            maker[value], value_ids[value] = box.id, f"{box.id}.{index}"

    for index, value in enumerate(content.arguments):
        add([value], _argument(f"a{index}", value, content))
    for index, equation in enumerate(content.equations):
        box = _operation(f"n{index}", equation, content)
        read(equation.inputs, box.id)
        add(equation.outputs, box)
    for index, (place, atom) in enumerate(content.results.items()):
        read([atom], f"r{index}")
        boxes.append(_result(f"r{index}", place, atom, is_new=place in content.changed))
    return Diagram(tuple(boxes), tuple(arrows))


def _argument(identifier: str, value: Value, content: Content) -> Box:
    name = content.arguments[value]
    return Box(
        identifier,
        shortened(printable(name)),
        (_kept_bytes(value, content),) if _kept_bytes(value, content) else (),
        _tooltip([f"{name}: {_type(value)}", content.facts.get(value, "")]),
        "argument",
        content.kinds.get(value, ""),
        name=printable(name),
    )


def _operation(identifier: str, equation: Equation, content: Content) -> Box:
    operation = equation.name
    lines = [operation + _operands(equation, content)]
    notes = []
    for value in equation.outputs:
        lines += [f"{_name(value, content)}: {_type(value)}", content.facts.get(value, "")]
        notes += [", ".join(filter(None, (content.labels.get(value, ""), _kept_bytes(value, content))))]
    kind = next((content.kinds[value] for value in equation.outputs if value in content.kinds), "")
    return Box(
        identifier,
        shortened(printable(text_of(equation))),
        tuple(shortened(printable(note), 36) for note in notes if note),
        _tooltip([*lines, f"kind: {kind}" if kind else ""]),
        "operation",
        kind,
        stands_out=equation.kind is Kind.PRODUCT,
        only_moves=equation.kind in (Kind.SAME, Kind.VIEW, Kind.PART) and len(equation.outputs) == 1,
        scope=scope_of(equation.scope),
    )


def _result(identifier: str, place: str, atom: Atom, *, is_new: bool) -> Box:
    constant = f" = {np.asarray(atom.value)[()]}" if isinstance(atom, Constant) and not atom.shape else ""
    text = shortened(printable(f"{place}\N{PRIME}" if is_new else place)) + shortened(constant)
    return Box(identifier, text, (), printable(f"result {place}: {_type(atom)}"), "result")


def scope_of(path: str) -> tuple[str, ...]:
    """The named scopes of a path. JAX adds entries such as `jvp()`, which name nothing.

    Example:
        >>> scope_of("model/vmap()/layer_1")
        ('model', 'layer_1')
    """
    return tuple(name for name in path.split("/") if re.sub(r"\w+\(|\)", "", name))


def _operands(equation: Equation, content: Content) -> str:
    named = (_name(atom, content) if isinstance(atom, Value) else _number(atom) for atom in equation.inputs)
    return f"({', '.join(named)})"


def _number(atom: Constant) -> str:
    return str(np.asarray(atom.value)[()]) if not atom.shape else _type(atom)


def _name(value: Value, content: Content) -> str:
    return content.arguments.get(value) or content.names.get(value, "?")


def _type(atom: Atom) -> str:
    return describe(atom.aval if isinstance(atom, Value) else atom)


def _kept_bytes(value: Value, content: Content) -> str:
    """The bytes of one step's value, if it is kept."""
    is_kept = content.keeping.get(value) in (KEPT, KEPT_AT_SOME, OFFLOADED)
    return readable_bytes(value.nbytes) if is_kept and hasattr(value.aval, "dtype") else ""


def _tooltip(lines: Iterable[str]) -> str:
    return "\n".join(printable(line) for line in lines if line)
