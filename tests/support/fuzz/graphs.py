"""A random cell against its graph: trace, any rewrites, back to a cell; equal values and gradients."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from fuzz.compare import Comparison, Run, UnequalError
from fuzz.random_cells import Case
from rnnscan.graph.nodes.run import GraphFunction
from rnnscan.ir.program import evaluate


# The seeds of `make test-all`.
SEEDS = 500
# One graph in so many is also scanned, by the cell's own memory choice.
SCAN_EVERY = 10
REWRITES: dict[str, Callable[[Any], Any]] = {
    **rs.graph.ENGINE_PASSES,
    **{
        rewrite.__name__: rewrite
        for rewrite in (
            rs.graph.fuse_names,
            rs.graph.fuse_round_trips,
            rs.graph.merge_common,
            rs.graph.remove_dead_ends,
            rs.graph.remove_reshapes_for_dot,
        )
    },
    "rename_output": lambda graph: _rename(graph),
    "replace": lambda graph: _replace(graph),
    "replace a pattern": lambda graph: _replace_pattern(graph),
}


def random_seeds(quick: tuple[int, ...]) -> list[Any]:
    """All seeds, those that are not of `quick` marked slow."""
    return [pytest.param(seed, marks=[] if seed in quick else [pytest.mark.slow]) for seed in range(SEEDS)]


def check_graph(seed: int) -> None:
    """Compare a seed's cell with the cell of its graph, rewritten at random.

    Raises:
        UnequalError: if they differ, or if something fails.
    """
    with jax.enable_x64(True):
        comparison = GraphComparison(Case.of(seed))
        try:
            comparison.check()
        except NotImplementedError:
            raise
        except Exception as error:
            raise UnequalError(
                f"seed {seed}, {comparison.rewrites}: {type(error).__name__}: {error}\n"
                f'Replay it: PYTHONPATH=tests:tests/support python -c "import conftest; '
                f'from fuzz.graphs import check_graph; check_graph({seed})"'
            ) from error


class GraphComparison(Comparison):
    """One step of a case, by its cell and by its graph."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        random = np.random.default_rng([case.seed, 9])
        self.rewrites = [str(random.choice(list(REWRITES))) for _ in range(random.integers(1, 7))]

    def check(self) -> None:
        step = self._step(lambda cell, *arguments: cell)
        expected = self.results_and_gradients(step)
        self._assert_close(self.results_and_gradients(self._step(self._through_a_graph)), expected, "the graph")
        if self.case.seed % SCAN_EVERY == 0:
            expected = self.results_and_gradients(self._scan(lambda cell, *arguments: cell))
            self._assert_close(self.results_and_gradients(self._scan(self._through_a_graph)), expected, "its scan")

    def _through_a_graph(self, cell: Any, *arguments: Any) -> Any:
        graph = rs.graph.trace(cell, *arguments)
        assert graph == rs.graph.trace(cell, *arguments), "traced again, the graph is another"
        for name in self.rewrites:
            graph = REWRITES[name](graph)
            assert set(graph.undefined()) <= set(graph.inputs), f"{name}: a reader was left without its value"
            names = [*graph.inputs, *graph.producers()]
            assert len(set(names)) == len(names) == len(graph.names), f"{name}: two values with one name"
        live = rs.graph.remove_dead_ends(graph)
        assert len(live.nodes) >= len(_live(graph)), "a live node is gone"
        for each in _with_bodies(live):
            assert len(each.nodes) == len(_live(each)), "a dead end stays"
        assert rs.graph.remove_dead_ends(live) == live, "not all dead ends are found at once"
        return graph.to_cell()

    def _step(self, change: Callable[..., Any]) -> Run:
        def run(params: Any, closed: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            x = jax.tree.map(_first, xs)
            carry = jax.tree.map(jnp.asarray, carry)
            return change(self.case.cell(closed), params, carry, x)(params, carry, x)

        return run

    def _memory(self, cell: Any) -> rs.Memory:
        """The case's memory choice, without labels of dead ends: a rewrite may have removed these."""
        memory = self.case.memory
        if not isinstance(cell, GraphFunction) or memory.recompute == "all":
            return memory
        labels = {label for own in cell.labels.values() for label in own}
        labels.update(one.params["name"] for one in cell.program.equations if one.primitive.name == "name")
        return dataclasses.replace(memory, recompute=tuple(one for one in memory.recompute if one in labels))

    def _scan(self, change: Callable[..., Any]) -> Run:
        case = self.case

        def run(params: Any, closed: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            carry = jax.tree.map(jnp.asarray, carry)
            cell = change(case.cell(closed), params, carry, jax.tree.map(_first, xs))
            options = {**case.rows_and_order, "memory": self._memory(cell), "unroll": case.unroll}
            return rs.scan(cell, params, carry, xs, length=case.length, **options)

        return run


def _live(graph: Any) -> set[int]:
    """The nodes that results or effects need."""
    wanted = [name for name in graph.outputs.values() if isinstance(name, rs.graph.Name)]
    for node in graph.nodes:
        if node.has_effects:
            wanted += [*node.outputs, *(name for name in node.inputs if isinstance(name, rs.graph.Name))]
    return {*graph.path([], wanted), *(node.id for node in graph.nodes if node.has_effects)}


def _with_bodies(graph: Any) -> Iterator[Any]:
    """The graph, and those of all bodies in it."""
    yield graph
    for node in graph.nodes:
        for body in rs.graph.bodies(graph, node.id).values():
            yield from _with_bodies(body)


def _first(leaf: Any) -> Any:
    """The input of the first step; zeros, where there is none."""
    return leaf[0] if leaf.shape[0] else jnp.zeros(leaf.shape[1:], leaf.dtype)


def _rename(graph: Any) -> Any:
    """Rename the last result that a node makes."""
    if not graph.nodes or not graph.nodes[-1].outputs:
        return graph
    bases = {name.base for name in graph.names.values()}
    free = next(name for name in (f"renamed {number}" for number in count()) if name not in bases)
    return rs.graph.rename_output(graph, graph.nodes[-1].id, 0, free)


def _replace(graph: Any) -> Any:
    """Replace the largest slice of nodes without holes around the middle one by the function that they are."""
    if not graph.nodes:
        return graph
    middle = graph.nodes[len(graph.nodes) // 2]
    ids = graph.path([], middle.outputs)
    inputs, outputs = graph.subgraph_io(ids)
    return rs.graph.replace(graph, ids, _function(graph, ids, inputs, outputs)) if outputs else graph


def _replace_pattern(graph: Any) -> Any:
    """Replace all parts like one near the end, of a few nodes that only its last node reads, by what they are."""
    nodes = [node for node in graph.nodes if node.outputs and not node.has_effects]
    if not nodes:
        return graph
    last = nodes[2 * len(nodes) // 3]
    consumers, producers, returned = graph.consumers(), graph.producers(), set(graph.outputs.values())
    held = {graph.names[value] for value in graph.labels} | returned
    ids, tasks = {last.id}, [*last.inputs]
    while tasks and len(ids) < 6:
        name = tasks.pop()
        if name not in producers or graph.nodes[producers[name][0]].has_effects:
            continue
        node = graph.nodes[producers[name][0]]
        inner = held.isdisjoint(node.outputs) and len(node.outputs) == 1
        # JAX computes an operation on numbers alone while it traces the pattern.
        inner &= any(isinstance(operand, rs.graph.Name) for operand in node.inputs)
        if inner and all(reader in ids for reader, _ in consumers[name]):
            ids.add(node.id)
            tasks += node.inputs
    inputs = graph.subgraph_io(ids).inputs
    if not inputs:
        return graph
    function = _function(graph, sorted(ids), inputs, last.outputs)
    # As many arguments as inputs: a pattern has no `*arguments`.
    letters = ", ".join(f"v{index}" for index in range(len(inputs)))
    pattern = eval(f"lambda {letters}: function({letters})", {"function": function})
    types = [graph.type_of(name) for name in inputs]
    assert rs.graph.matches(graph, pattern, types=types), "a pattern is not found where it comes from"
    return rs.graph.replace(graph, pattern, pattern, types=types)


def _function(graph: Any, ids: Sequence[int], inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """What some nodes compute."""

    def same(*values: Any) -> tuple[Any, ...]:
        known = dict(zip(map(graph.value, inputs), values, strict=True))
        evaluate([graph.program.equations[index] for index in ids], known)
        return tuple(known[graph.value(name)] for name in outputs)

    return same
