"""Facts about the values of a program: the kind of work that makes them, and what the rule of memory does with them."""

from collections.abc import Iterable, Mapping

from rnnscan._util.messages import listing, nearest
from rnnscan.engine.analysis.recurrence import kinds_of_loops
from rnnscan.graph.nodes.names import is_name_equation
from rnnscan.ir.program import Program, Value, determined, outputs_of
from rnnscan.memory import Memory


def kinds_of_work(program: Program, values: Iterable[Value]) -> dict[Value, str]:
    """The kind of work that makes each value when the program is the step of a scan.

    Args:
        program: the program.
        values: its inputs, and the results of its equations.

    Returns:
        Value -> "invariant", "parallel", "linear", "elementwise" or "recurrent".
    """
    pairs = list(zip(program.carry, program.new_carry, strict=True))
    changing = [(old, new) for old, new in pairs if old is not new]
    carry, new_carry = [old for old, _ in changing], [new for _, new in changing]
    fixed = determined(program.equations, [*program.invariant, *(old for old, new in pairs if old is new)])
    kinds: dict[Value, str] = {value: "invariant" if value in fixed else "parallel" for value in values}
    for _, cycle, kind in kinds_of_loops(program.equations, carry, new_carry):
        kinds.update(dict.fromkeys([*cycle.leaves, *outputs_of(cycle.equations)], kind))
    return kinds


def labels_of(program: Program, labels: Mapping[Value, Iterable[str]]) -> dict[Value, set[str]]:
    """The labels of `rnnscan.name` on each value.

    Args:
        program: the program.
        labels: labels that have no equation of their own.
    """
    labels_by_value = {value: set(value_labels) for value, value_labels in labels.items()}
    for equation in program.equations:
        if is_name_equation(equation):
            labels_by_value.setdefault(equation.outputs[0], set()).add(equation.params["name"])
    return labels_by_value


def kept_by_rule(
    program: Program, labels: Mapping[Value, set[str]], values: Iterable[Value], memory: Memory, function: str
) -> dict[Value, str]:
    """What the rule of memory does with each value.

    Args:
        program: the program.
        labels: the labels on each value.
        values: its inputs, and the results of its equations.
        memory: the memory choice.
        function: the caller's name, for messages.

    Returns:
        Value -> "kept", "recomputed" or "offloaded".

    Raises:
        ValueError: if the choice has a name that no value has.
    """
    recompute = set() if memory.recompute == "all" else set(memory.recompute)
    known = sorted(set().union(*labels.values()))
    for name in (*sorted(recompute), *memory.offload):
        if name not in known:
            raise ValueError(
                f"graph.{function}: every name of the memory choice must be one of the graph's, "
                f"{listing(known)}; got {name!r}.{nearest(name, known)}"
            )
    always = {*program.inputs, *program.outputs}

    def status(value: Value) -> str:
        value_labels = labels.get(value, set())
        if value in always:
            return "kept"
        if value_labels & set(memory.offload):
            return "offloaded"
        return "kept" if memory.recompute != "all" and value_labels - recompute else "recomputed"

    return {value: status(value) for value in values}
