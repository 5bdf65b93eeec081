"""Status inference reaches a fixpoint; a conflict and what is unknown are told."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.graph import Name


pytestmark = pytest.mark.typed


def test_statuses_go_back_and_forth_until_nothing_changes():
    """Caffe2 goes once forward and once backward. Here each turn of direction tells two values more."""

    def function(*xs):
        pairs = [*pairwise(xs)]
        return tuple(x + other for x, other in [*pairs[::2], *pairs[1::2]])

    graph = rs.graph.trace(function, *([1.0] * 30))
    known = {Name("xs[0]")}
    for node in (*graph.nodes, *reversed(graph.nodes)):
        known.update({*node.inputs, *node.outputs} if known & {*node.inputs, *node.outputs} else ())
    assert len(known) < 10
    for given in ("xs[0]", "xs[29]", "result[14]"):
        statuses = rs.graph.infer_status(graph, {given: "host"})
        assert statuses.unknown == ()
        assert set(statuses.known.values()) == {"host"}


def test_a_conflict_names_the_value_and_both_statuses():
    graph = rs.graph.trace(lambda x, y: jnp.sin(x) * y, 1.0, 2.0)
    with pytest.raises(ValueError, match="got 'host' for 'y' from `known`, and 'device' from node 1, mul") as error:
        rs.graph.infer_status(graph, {"sin.1": "device", Name("y"): "host"})
    assert "one status" in str(error.value)
    with pytest.raises(ValueError, match=r"no value 'z'"):
        rs.graph.infer_status(graph, {"z": 1})
    with pytest.raises(ValueError, match=r"each of the 1 inputs and 1 outputs of node 0, sin; got 0 and 1"):
        rs.graph.infer_status(graph, {"x": 1}, by_operation={"sin": lambda node, inputs, outputs: ([], outputs)})


def test_what_nothing_tells_is_listed_and_numbers_have_no_status():
    graph = rs.graph.trace(lambda x, y: (2.0 * x, jnp.sin(y)), 1.0, 2.0)
    statuses = rs.graph.infer_status(graph, {"x": 0})
    assert statuses.known == {Name("x"): 0, graph.outputs["result[0]"]: 0}
    assert statuses.unknown == (Name("y"), graph.outputs["result[1]"])


@pytest.mark.slow  # test_linear.py counts on small graphs.
def test_ten_thousand_nodes_are_looked_at_a_bounded_number_of_times():
    def long(x):
        for _ in range(5_000):
            x = jnp.sin(x) * x
        return x

    graph = rs.graph.trace(long, 1.0)
    looks = 0

    def counted(node, inputs, outputs):
        nonlocal looks
        looks += 1
        return rs.graph.same_status(node, inputs, outputs)

    assert rs.graph.infer_status(graph, {"result": 1}, counted).unknown == ()
    assert looks <= 6 * len(graph.nodes)


def test_the_kind_of_work_is_that_of_explain():
    cell = rs.stack(rs.cells.LSTM(3), rs.cells.SRU(4), rs.cells.GRU(3))
    x = jnp.ones((2, 3))
    params = cell.init(jax.random.key(0), input_size=3)
    carry = cell.initial_carry(x)
    graph = rs.graph.fuse_names(rs.graph.trace(cell, params, carry, x))
    kinds = rs.graph.status_of_work(graph)
    expected = rs.explain(cell, params, carry, x[None]).equations
    assert [node.operation for node in graph.nodes] == [equation.operation for equation in expected]
    assert [kinds[node.outputs[0]] for node in graph.nodes] == [equation.kind for equation in expected]
    assert {"parallel", "linear", "recurrent"} <= set(kinds.values())
    assert kinds[Name("x")] == "parallel"


def test_types_and_the_rule_of_memory():
    def cell(params, carry, x):
        gates = rs.name(x + carry, "gates")
        other = rs.name(jnp.sin(gates), "other")
        return jnp.tanh(other) * params, gates.astype(jnp.bfloat16)

    graph = rs.graph.trace(cell, 1.0, jnp.zeros(3), jnp.ones(3))
    dtypes = rs.graph.status_of_types(graph, "dtype")
    assert dtypes[graph.outputs["y"]] == jnp.bfloat16
    assert set(rs.graph.status_of_types(graph, "memory_space").values()) == {jax.memory.Space.Device}
    assert len(rs.graph.status_of_types(graph, "sharding")) == len(graph.names)
    memory = rs.Memory(recompute=("other",), offload=("gates",))
    status = rs.graph.status_of_memory(graph, memory)
    assert status[Name("gates", 1)] == "offloaded"
    assert status[Name("other", 1)] == status[Name("sin", 1)] == "recomputed"
    assert status[graph.outputs["y"]] == status[Name("x")] == "kept"
    everything = rs.graph.status_of_memory(graph, rs.Memory(recompute="all"))
    assert everything[Name("gates", 1)] == "recomputed"
    with pytest.raises(ValueError, match=r"one of the graph's, 'gates', 'other'; got 'gate'. Did you mean 'gates'\?"):
        rs.graph.status_of_memory(graph, rs.Memory(recompute=("gate",)))


@pytest.mark.bad_input
def test_another_part_of_a_type_is_an_error():
    graph = rs.graph.trace(jnp.sin, 1.0)
    with pytest.raises(ValueError, match="must be one of 'dtype', 'memory_space', 'sharding'; got 'shape'"):
        rs.graph.status_of_types(graph, "shape")
