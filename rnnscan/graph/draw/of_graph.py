"""The content of a graph's picture: names, and for a cell the kinds of work and what the rule of memory keeps."""

from collections.abc import Mapping, Sequence

from rnnscan._util.messages import describe
from rnnscan.graph.draw.build import Content
from rnnscan.graph.nodes.facts import kept_by_rule, kinds_of_work, labels_of
from rnnscan.graph.nodes.names import Name, is_name_equation
from rnnscan.ir.program import Program, Value
from rnnscan.memory import Memory


def content_of_graph(
    program: Program,
    arguments: Sequence[Value],
    places: Sequence[str],
    names: Mapping[Value, Name],
    labels: Mapping[Value, tuple[str, ...]],
    *,
    is_cell: bool,
    memory: Memory | None,
) -> Content:
    """What the picture of a graph is drawn from.

    Args:
        program: the graph's program.
        arguments: the values of its arguments, in their order.
        places: the place of each result.
        names: the name of each value.
        labels: labels that have no equation of their own.
        is_cell: whether it is a cell.
        memory: the memory choice of a cell; None: `Memory()`.

    Raises:
        TypeError: if `memory` is not a `Memory`.
        ValueError: if the graph is not of a cell and gets a memory choice, or if the choice has an unknown name.
    """
    if memory is not None and not isinstance(memory, Memory):
        raise TypeError(f"graph.draw: `memory` must be a Memory; got {describe(memory)}. Write memory=rs.Memory().")
    if memory is not None and not is_cell:
        raise ValueError(
            "graph.draw: only the graph of a cell, `(params, carry, x) -> (carry, y)`, can be drawn with a memory "
            f"choice; got {memory!r}. Leave `memory` out."
        )
    written = {value: ", ".join(labels_of_value) for value, labels_of_value in labels.items()}
    written |= {
        equation.outputs[0]: equation.params["name"] for equation in program.equations if is_name_equation(equation)
    }
    kinds, keeping = {}, {}
    if is_cell:
        kinds = kinds_of_work(program, names)
        keeping_of = kept_by_rule(program, labels_of(program, labels), names, memory or Memory(), "draw")
        # Parameters are in memory in any case, once for all steps.
        keeping = {value: keeping_of[value] for value in names if kinds[value] != "invariant"}
    return Content(
        equations=program.equations,
        arguments={value: str(names[value]) for value in arguments},
        results=dict(zip(places, (*program.new_carry, *program.stacked), strict=True)),
        changed=places[: len(program.carry)],
        names={value: str(name) for value, name in names.items()},
        labels=written,
        kinds=kinds,
        keeping=keeping,
    )
