"""The engine's own passes, for graphs."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from rnnscan._messages import listing
from rnnscan.engine.fission import passes
from rnnscan.graph.core.graph import Graph
from rnnscan.ir.program import Pass, Value


# A function from a graph to a graph of the same function.
Rewrite: TypeAlias = Callable[[Graph], Graph]


def _of_pass(run: Pass) -> Rewrite:
    def rewrite(graph: Graph) -> Graph:
        effects = [str(node.id) for node in graph.nodes if node.has_effects]
        if effects:
            raise ValueError(
                f"graph.ENGINE_PASSES[{run.__name__!r}]: the engine's passes are for graphs without effects; got "
                f"effects in the nodes {listing(effects)}. Trace the function without its debug prints."
            )
        # Labelled values are outputs meanwhile, because a pass may drop others.
        size = len(graph.program.stacked)
        program = run(replace(graph.program, stacked=(*graph.program.stacked, *graph.labels)))
        moved = zip(program.stacked[size:], graph.labels.values(), strict=True)
        labels: dict[Value, tuple[str, ...]] = {}
        for atom, own in moved:
            if isinstance(atom, Value):
                labels[atom] = tuple(dict.fromkeys([*labels.get(atom, ()), *own]))
        return graph.rewritten(replace(program, stacked=program.stacked[:size]), labels=labels)

    rewrite.__name__ = run.__name__
    rewrite.__doc__ = run.__doc__
    return rewrite


# The passes over a step's program, by name, in the order in which the engine first runs them.
ENGINE_PASSES: dict[str, Rewrite] = {
    run.__name__: _of_pass(run) for run in (*passes.MATRIX_STATES, *passes.FORWARD, *passes.BACKWARD)
}
