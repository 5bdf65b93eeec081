"""The diagram of a plan's step: its operations by kind, and the values that the plan keeps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.graph.draw.build import Content, diagram_of
from rnnscan.graph.draw.colors import KEPT, KEPT_AT_SOME, OFFLOADED, RECOMPUTED
from rnnscan.graph.draw.diagram import Box, Diagram
from rnnscan.graph.nodes.facts import kinds_of_work
from rnnscan.graph.nodes.names import Name, complete
from rnnscan.insight.describe import StepDescription
from rnnscan.insight.kept_values import kept_values
from rnnscan.ir.program import Atom, Value


def step_diagram(plan: ExecutionPlan, description: StepDescription, places: Mapping[int, str]) -> Diagram:
    """The diagram of a plan's step. Call it inside the trace of the plan's arguments.

    Args:
        plan: the plan.
        description: its description.
        places: the place of each argument, such as "params['kernel']", by the id of the array.
    """
    step, call = plan.ordered.step, plan.call
    program = step.program
    carry = _carry(plan)
    xs = _leaf_places("x", call.inputs)
    constants = step.constants[: len(step.constants) - len(step.unchanged)]
    arrays = list(zip(constants, plan.constants, strict=False))
    arguments: dict[Value, str] = {
        leaf: xs[index] if index < len(xs) else f"resets and valid steps[{index - len(xs)}]"
        for index, leaf in enumerate(step.x)
    }
    carry_places = _leaf_places("carry", call.carry)
    arguments |= {leaf: carry_places[index] for index, (leaf, _) in enumerate(carry)}
    arguments |= {value: places.get(id(array), f"captured[{index}]") for index, (value, array) in enumerate(arrays)}
    ys = dict(zip(_leaf_places("y", call.y), step.y, strict=True))
    labels = _labels(plan)
    bases = {atom: place for place, atom in ys.items() if isinstance(atom, Value)} | labels
    named = {value: Name(place) for value, place in arguments.items()}
    names = complete(program, named, bases)
    kinds = kinds_of_work(program, names)
    for leaf in (carry[index][0] for index in step.unchanged):
        del kinds[leaf]  # A carry is not drawn as a parameter.
    facts = {
        equation.outputs[0]: f"forward: {info.forward}; backward: {info.backward}"
        for equation, info in zip(program.equations, description.equations, strict=True)
        if equation.outputs
    }
    facts |= {leaf: f"kept {info.kept}" for (leaf, _), info in zip(carry, description.carry, strict=True)}
    return diagram_of(
        Content(
            equations=program.equations,
            arguments=arguments,
            results={**dict(zip(carry_places, (new for _, new in carry), strict=True)), **ys},
            changed=carry_places,
            names={value: str(name) for value, name in names.items()},
            labels=labels,
            kinds=kinds,
            keeping={value: keeping for value, keeping in _keeping(plan).items() if kinds.get(value) != "invariant"},
            facts=facts,
        )
    )


def renamed(diagram: Diagram, names: Mapping[str, str]) -> Diagram:
    """The diagram with other names for arguments, and for results that are new values of them.

    Args:
        diagram: the diagram of a step.
        names: place -> name.
    """
    both = {**names, **{f"{place}\N{PRIME}": f"{name}\N{PRIME}" for place, name in names.items()}}

    def with_name(box: Box) -> Box:
        is_operation = box.role not in ("argument", "result")
        return box if is_operation or box.text not in both else replace(box, text=both[box.text])

    return replace(diagram, boxes=tuple(map(with_name, diagram.boxes)))


def _carry(plan: ExecutionPlan) -> list[tuple[Value, Atom]]:
    """All leaves of the carry before and after the step, by position."""
    step = plan.ordered.step
    unchanged = step.constants[len(step.constants) - len(step.unchanged) :]
    pairs = [*zip(step.carry, step.new_carry, strict=True), *((leaf, leaf) for leaf in unchanged)]
    pair_of = dict(zip([*step.changing, *step.unchanged], pairs, strict=True))
    return [pair_of[index] for index in sorted(pair_of)]


def _labels(plan: ExecutionPlan) -> dict[Value, str]:
    labels_of: dict[Value, dict[str, None]] = {}
    for position, atom in plan.ordered.step.named.items():
        if isinstance(atom, Value):
            labels_of.setdefault(atom, {})[plan.call.names.labels[position]] = None
    return {value: ", ".join(labels) for value, labels in labels_of.items()}


def _keeping(plan: ExecutionPlan) -> dict[Value, str]:
    """What happens to each value of the step between the passes; empty if one step does not tell."""
    kept, step = kept_values(plan), plan.ordered.step
    if kept is None or plan.memory is None:
        return {}
    times: Counter[tuple[str, Any]] = Counter()
    for one in kept:
        if one.source in ("carry", "x", "y", "name"):
            times[one.source, one.of] += one.times

    def how(source: str, of: Any) -> str:
        if (source, of) not in times:
            return RECOMPUTED
        return KEPT if times[source, of] >= plan.call.length else KEPT_AT_SOME

    keeping: dict[Value, str] = {}
    for equation in step.program.equations:
        keeping.update(dict.fromkeys(equation.outputs, RECOMPUTED))
    carry = _carry(plan)
    keeping |= {leaf: how("carry", index) for index, (leaf, _) in enumerate(carry)}
    keeping |= {leaf: how("x", index) for index, leaf in enumerate(step.x)}
    offloaded = set(plan.memory.offload)
    for atom, label in zip(step.kept, step.kept_labels, strict=True):
        if isinstance(atom, Value) and ("name", label) in times:
            keeping[atom] = OFFLOADED if label in offloaded else KEPT
    for index, atom in enumerate(step.y):
        if isinstance(atom, Value) and ("y", index) in times:
            keeping[atom] = KEPT
            # The carry before a step is the output of the step before.
            keeping |= {leaf: KEPT for leaf, new in carry if new is atom}
    return keeping


def _leaf_places(root: str, tree: Any) -> Sequence[str]:
    return [root + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
