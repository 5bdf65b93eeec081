"""Rewrites and queries take time linear in the graph: twice the equations, twice the steps of the interpreter.

A count, because a clock tells little on a busy machine. Only rnnscan's own code is counted.
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs


ROOT = str(Path(rs.__file__).parent)
SMALL = 8
# Something quadratic that is a seventh of the work at the small size exceeds it.
MOST = 2.3


def cell(params, carry, x, times):
    """Each rewrite and each pass of the engine finds something in each part, but for `ONLY_IN_SCANS`."""
    w, u = params["w"], params["u"]
    for _ in range(times):
        rs.name(jnp.cos(x), "dead")
        x = jnp.sin(x) + jnp.sin(x)
        x = rs.name(x.T.T, "back") * 2.0
        x = (x[None][0] @ w) * 2.0
        x = x @ w + jnp.tanh(x) @ u + jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())))
        x = x + (x.T @ jnp.cos(x)).T + (x @ u) * (x @ u) + x[:, :1] @ x[:1]
        x = jnp.pad(x[:, :1], ((0, 0), (0, 1))) + jnp.pad(x[:, 1:], ((0, 0), (1, 0)))
        x = x + jax.lax.dynamic_update_slice(jnp.zeros((2, 2)), x[:1], (0, 0))
        x = x + jnp.zeros((2, 2)).at[jnp.array([1, 0])].add(x) + jnp.sum(jnp.sum(x, axis=0).reshape(1, 2), axis=0)
        x = x + jnp.power(x, 1.5) + jax.jvp(jax.nn.softplus, (x,), (x,))[1]
        carry = jnp.tanh(carry @ u + x)
    return carry, x


# `wide_products` rewrites sums over the steps of a scan, and `contract_sums` products that are large enough.
ONLY_IN_SCANS = {"wide_products", "contract_sums"}


@cache
def graph_of(times):
    ones = jnp.ones((2, 2))
    graph = rs.graph.trace(lambda params, carry, x: cell(params, carry, x, times), {"w": ones, "u": ones}, ones, ones)
    # So that what a graph computes once is not counted.
    assert graph.nodes
    assert graph.consumers()
    assert graph.producers()
    assert graph.value("back")
    return graph


def with_inner(x, y):
    inner = jnp.tanh(x)
    return inner @ y, inner


def halves(graph):
    return range(0, len(graph.nodes), 2)


def inferred(transfer, status_of):
    def infer(graph):
        known = status_of(graph)
        return rs.graph.infer_status(graph, {name: known[name] for name in graph.inputs}, transfer)

    infer.__name__ = transfer.__name__
    return infer


def of_type(which):
    return lambda graph: rs.graph.status_of_types(graph, which)


def whole(graph):
    return dict.fromkeys(graph.names.values(), jax.sharding.PartitionSpec())


REWRITES: dict[str, Callable[[Any], Any]] = {
    **rs.graph.ENGINE_PASSES,
    "remove_dead_ends": rs.graph.remove_dead_ends,
    "merge_common": rs.graph.merge_common,
    "fuse_names": rs.graph.fuse_names,
    "fuse_round_trips": rs.graph.fuse_round_trips,
    "remove_reshapes_for_dot": rs.graph.remove_reshapes_for_dot,
    "rename_output": lambda graph: rs.graph.rename_output(graph, len(graph.nodes) // 2, 0, "new"),
    "rename_input": lambda graph: rs.graph.rename_input(graph, 1, 0, "new", from_producer=True),
    "replace nodes": lambda graph: rs.graph.replace(graph, graph.path([], ["sin.2"]), lambda *values: values[-1]),
    "replace a pattern": lambda graph: rs.graph.replace(graph, lambda x, w: jnp.tanh(x) @ w, lambda x, w: x @ w),
    "replace a value in between": lambda graph: rs.graph.replace(graph, with_inner, lambda x, y: (x * y, x)),
    "replace nothing": lambda graph: rs.graph.replace(graph, lambda a, b: ((a + b) + (a + b)) * a, lambda a, b: a),
}
READERS: dict[str, Callable[[Any], Any]] = {
    "path": lambda graph: graph.path([], ["back"]),
    "subgraph_io": lambda graph: graph.subgraph_io(halves(graph)),
    "text": str,
    "equality": lambda graph: graph == graph.rewritten(graph.program),
    "status_of_work": rs.graph.status_of_work,
    "status_of_memory": rs.graph.status_of_memory,
    "same_status": lambda graph: rs.graph.infer_status(graph, {"back": 1}),
    "dtypes": inferred(rs.graph.transfer_dtype, of_type("dtype")),
    "memory spaces": inferred(rs.graph.transfer_memory_space, of_type("memory_space")),
    "shardings": inferred(rs.graph.transfer_sharding, whole),
    "recompute": inferred(rs.graph.transfer_recompute, rs.graph.status_of_memory),
    "work": inferred(rs.graph.transfer_work, rs.graph.status_of_work),
}


def steps(run: Callable[[], Any]) -> int:
    """The number of bytecode instructions of rnnscan that a function runs."""
    count = 0

    def instruction(frame, event, _):
        nonlocal count
        count += event == "opcode"
        return instruction

    def call(frame, event, _):
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return instruction

    before = sys.gettrace()
    sys.settrace(call)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", [*REWRITES, *READERS])
def test_twice_the_graph_takes_twice_the_steps(name):
    run = (REWRITES | READERS)[name]
    tiny, small, large = (graph_of(size) for size in (SMALL // 4, SMALL, 2 * SMALL))
    steps(lambda: run(tiny))  # Caches traces. Python 3.12 counts all instructions of a function from its second run.
    counts = [steps(lambda graph=graph: run(graph)) for graph in (small, large)]
    assert counts[0] > len(small.nodes)
    assert counts[1] < MOST * counts[0], f"{name}: {counts}"
    if name in REWRITES and name != "replace nothing" and not name.startswith("rename"):
        live = large if name == "remove_dead_ends" else rs.graph.remove_dead_ends(large)
        assert (run(live) == live) is (name in ONLY_IN_SCANS), f"{name} finds nothing"
