"""The engine's own passes, for graphs."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from rnnscan._util.messages import listing
from rnnscan.engine import passes
from rnnscan.engine.costs.heuristics import BACKENDS, heuristics
from rnnscan.graph.core.graph import Graph
from rnnscan.ir.program import Pass, Value


# A function from a graph to a graph of the same function.
Rewrite: TypeAlias = Callable[[Graph], Graph]


def _of_pass(name: str, documented: Pass) -> Rewrite:
    def rewrite(graph: Graph) -> Graph:
        effects = [str(node.id) for node in graph.nodes if node.has_effects]
        if effects:
            raise ValueError(
                f"graph.ENGINE_PASSES[{name!r}]: the engine's passes are for graphs without effects; got "
                f"effects in the nodes {listing(effects)}. Trace the function without its debug prints."
            )
        # Labeled values are outputs meanwhile, because a pass may drop others.
        size = len(graph.program.stacked)
        run = passes.every(heuristics())[name]
        program = run(replace(graph.program, stacked=(*graph.program.stacked, *graph.labels)))
        moved = zip(program.stacked[size:], graph.labels.values(), strict=True)
        labels: dict[Value, tuple[str, ...]] = {}
        for atom, atom_labels in moved:
            if isinstance(atom, Value):
                labels[atom] = tuple(dict.fromkeys([*labels.get(atom, ()), *atom_labels]))
        return graph.rewritten(replace(program, stacked=program.stacked[:size]), labels=labels)

    rewrite.__name__ = name
    rewrite.__doc__ = getattr(documented, "func", documented).__doc__
    return rewrite


# The passes over a step's program, by name, in the order in which the engine first runs them.
ENGINE_PASSES: dict[str, Rewrite] = {name: _of_pass(name, run) for name, run in passes.every(BACKENDS["cpu"]).items()}
