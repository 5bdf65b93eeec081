"""ssa, producers, consumers, slices and sub-graphs, beside a plain walk over the jaxpr."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.graph import Literal, Name


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def function(x, y, unused, /, *others):
    product = rs.name(x * y, "shared")
    left, right = jnp.sin(product), jnp.cos(product)
    rs.name(left + 1.0, "dead")
    return left * right, rs.name(right - y, "shared")


@pytest.fixture
def graph():
    return rs.graph.trace(function, 1.0, 2.0, 3.0, 4.0)


def test_ssa_is_that_of_the_jaxpr(graph):
    jaxpr = jax.make_jaxpr(function)(1.0, 2.0, 3.0, 4.0).jaxpr
    number = {var: index for index, var in enumerate([*jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)])}
    names = [*graph.inputs, *(name for _, outputs in graph.ssa() for name in outputs)]
    assert len(set(names)) == len(names) == len(number)
    for eqn, (inputs, outputs) in zip(jaxpr.eqns, graph.ssa(), strict=True):
        assert [names.index(name) for name in outputs] == [number[var] for var in eqn.outvars]
        for operand, var in zip(inputs, eqn.invars, strict=True):
            if isinstance(operand, Name):
                assert names.index(operand) == number[var]
            else:
                assert operand == rs.graph.Literal(var.val)


def test_versions_count_the_writes_of_a_name(graph):
    made = [str(name) for _, outputs in graph.ssa() for name in outputs]
    assert [name for name in made if name.startswith("shared")] == ["shared.1", "shared.2"]
    assert graph.type_of("shared") is graph.type_of(Name("shared", 2))


def test_undefined_are_the_inputs_in_use(graph):
    assert [*map(str, graph.undefined())] == ["x", "y"]
    assert [*map(str, rs.graph.trace(lambda x, y: (y, 3), 1.0, 2.0).undefined())] == ["y"]


def test_arrays_and_nan_in_place_of_names():
    """`written_out` reads an array by a gather, and one NaN is another."""

    def trace(function):
        return rs.graph.ENGINE_PASSES["written_out"](rs.graph.trace(function, jnp.ones((2, 4))))

    def sorted_by_first(x):
        return jnp.where(x > 2, jnp.take(x, jnp.argsort(x[0]), axis=1), jnp.nan)

    one, other = trace(sorted_by_first), trace(sorted_by_first)
    assert any(np.ndim(read.value) for node in one.nodes for read in node.inputs if hasattr(read, "value"))
    assert list(one.undefined()) == list(one.inputs)
    assert one.subgraph_io([node.id for node in one.nodes]).inputs == tuple(one.inputs)
    assert one.nodes == other.nodes
    assert Literal(np.float32(0)) != Literal(np.float32(-0.0))


def test_producers_and_consumers_are_each_others_inverse(graph):
    for node in graph.nodes:
        for index, name in enumerate(node.outputs):
            assert graph.producers()[name] == (node.id, index)
        for index, name in enumerate(node.inputs):
            if isinstance(name, Name):
                assert (node.id, index) in graph.consumers()[name]
    pairs = sum(len(readers) for readers in graph.consumers().values())
    assert pairs == sum(isinstance(name, Name) for node in graph.nodes for name in node.inputs)
    assert graph.consumers()[Name("unused")] == ()
    square = rs.graph.trace(lambda x: x * x, 1.0)
    assert square.consumers()[Name("x")] == ((0, 0), (0, 1))


def test_a_path_is_what_outputs_depend_on_after_the_inputs(graph):
    operations = [node.operation for node in graph.nodes]
    everything = [node.id for node in graph.nodes]
    live = [index for index in everything if index not in (operations.index("add"), operations.index("add") + 1)]
    assert graph.path([], [*graph.outputs.values()]) == live
    assert [operations[index] for index in graph.path(["shared.1"], [graph.outputs["result[0]"]])] == [
        "sin",
        "cos",
        "mul",
    ]
    assert graph.path(["shared.1"], ["shared.1"]) == []
    assert graph.path([], ["x"]) == []


def test_a_sub_graph_reads_and_makes_what_crosses_its_border(graph):
    for mask in range(2 ** len(graph.nodes)):
        ids = [node.id for node in graph.nodes if mask >> node.id & 1]
        inputs, outputs = graph.subgraph_io(reversed(ids))
        made = {name for index in ids for name in graph.nodes[index].outputs}
        read = {name for index in ids for name in graph.nodes[index].inputs if isinstance(name, Name)}
        outside = {name for node in graph.nodes if node.id not in ids for name in node.inputs}
        assert set(inputs) == read - made
        assert set(outputs) == made & (outside | set(graph.outputs.values()))
        assert list(outputs) == sorted(outputs, key=graph.producers().__getitem__)


def test_unknown_names_and_ids_are_errors(graph):
    with pytest.raises(ValueError, match=r"graph.path: the graph has no value 'shard'. Did you mean 'shared.2'\?"):
        graph.path([], ["shard"])
    with pytest.raises(ValueError, match=r"ids of nodes go from 0 to \d+; got 99"):
        graph.subgraph_io([0, 99])
    with pytest.raises(ValueError, match="no value"):
        graph.type_of(Name("shared", 7))
    with pytest.raises(TypeError, match=r"must be a list of names; got the one name 'x'"):
        graph.path("x", ["shared.1"])


def test_names_that_are_written_the_same_need_a_name():
    clash = rs.graph.trace(lambda **named: rs.name(named["a.1"], "a"), **{"a.1": 1.0})
    with pytest.raises(ValueError, match=r"a name must tell one value; got 'a.1', which 2 values have"):
        clash.type_of("a.1")
    assert clash.type_of(Name("a", 1)) is not None


def test_the_text_of_a_graph():
    def cell(params, carry, x):
        carry = jnp.tanh(rs.name(x @ params["w"] + carry, "gates"))
        return carry, carry[:, :1] * 2

    graph = rs.graph.trace(cell, {"w": jnp.ones((3, 4))}, jnp.zeros((2, 4)), jnp.ones((2, 3)))
    lines = str(graph).splitlines()
    assert lines[1] == "  params['w'] : float32[3,4]"
    assert "  2  gates.1       = name[name=gates](add.1)" in str(graph)
    assert lines[-2:] == ["  carry = carry.1", "  y     = y.1"]
    assert repr(graph) == "Graph of 6 nodes: params, carry, x -> carry, y"


@pytest.mark.slow  # test_linear.py counts on small graphs.
def test_ten_thousand_nodes_are_walked_once():
    """Every query reads each equation a bounded number of times; a count, so that no machine is too slow for it."""

    def long(x):
        for _ in range(5_000):
            x = jnp.sin(x) * x
        return x

    graph = rs.graph.trace(long, 1.0)
    assert len(graph.nodes) == 10_000
    assert len(graph.path(["x"], ["result"])) == 10_000
    assert len(graph.subgraph_io(range(0, 10_000, 2)).outputs) == 5_000
    assert sum(map(len, graph.consumers().values())) == 15_000
    assert graph == graph.rewritten(graph.program)
