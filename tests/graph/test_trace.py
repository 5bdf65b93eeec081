"""trace() and to_cell(): a cell as a graph, and back."""

import sys
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from fuzz.graphs import check_graph, random_seeds


@pytest.fixture
def lstm():
    cell = rs.cells.LSTM(4)
    random = np.random.default_rng(0)
    params = cell.init(jax.random.key(0), input_size=3)
    params = jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype), params)
    xs = normal(random, (5, 2, 3), jnp.float32)
    carry = jax.tree.map(lambda leaf: leaf + 0.3, cell.initial_carry(xs[0]))
    return cell, params, carry, xs


def test_a_cells_values_are_named_after_labels_arguments_and_operations(lstm):
    cell, params, carry, xs = lstm
    graph = rs.graph.trace(cell, params, carry, xs[0])
    assert [*map(str, graph.inputs)] == [
        "params['bias']",
        "params['kernel']",
        "params['recurrent_kernel']",
        "carry[0]",
        "carry[1]",
        "x",
    ]
    assert {place: str(name) for place, name in graph.outputs.items()} == {
        "carry[0]": "carry[0].1",
        "carry[1]": "carry[1].1",
        "y": "carry[0].1",
    }
    assert rs.graph.Name("gates", 1) in graph.producers()
    assert rs.graph.Name("dot_general", 2) in graph.producers()


def test_the_cell_of_a_graph_scans_as_the_cell_with_its_names(lstm):
    cell, params, carry, xs = lstm

    def loss(cell, params, carry, xs, recompute):
        last, ys = rs.scan(cell, params, carry, xs, memory=rs.Memory(recompute=recompute))
        return jnp.sum(ys * jnp.cos(ys)) + jnp.sum(last[1] ** 2)

    again = rs.graph.trace(cell, params, carry, xs[0]).to_cell()
    for recompute in ((), ("gates",)):
        gradient = jax.jit(jax.value_and_grad(loss, argnums=(1, 2, 3)), static_argnums=(0, 4))
        expected = gradient(cell, params, carry, xs, recompute)
        jax.tree.map(np.testing.assert_array_equal, gradient(again, params, carry, xs, recompute), expected)
    assert rs.explain(again, params, carry, xs).kinds == rs.explain(cell, params, carry, xs).kinds


def test_arrays_that_are_closed_over_get_gradients_and_are_listed():
    table = jnp.arange(12.0).reshape(4, 3)

    def of_table(table, through_a_graph):
        def function(token, scale):
            return jnp.sin(table[token]) * scale

        if through_a_graph:
            graph = rs.graph.trace(function, 2, 0.5)
            assert [(one.shape, one.nbytes) for one in graph.captured()] == [((4, 3), 48)]
            function = graph.to_cell()
        return function(2, 0.5).sum()

    expected = jax.grad(of_table)(table, False)
    np.testing.assert_array_equal(jax.grad(of_table)(table, True), expected)
    np.testing.assert_array_equal(jax.jit(jax.grad(of_table), static_argnums=1)(table, True), expected)


def test_an_array_that_is_closed_over_twice_is_one_input():
    table = jnp.ones((4, 3))
    graph = rs.graph.trace(lambda x: x @ table + jax.jit(lambda x: x @ table)(2 * x), jnp.ones(4))
    assert [str(one.name) for one in graph.captured()] == ["captured[0]"]
    named = rs.graph.trace(lambda captured: captured * np.arange(3.0), jnp.ones(3))
    assert [*map(str, named.inputs)] == ["captured", "captured_[0]"]


def test_any_function_with_named_arguments_is_a_graph():
    def net(params, *others, gate=1.0, **blobs):
        return {"sum": params["a"] + others[0] * gate, "rest": blobs["state"], "number": 3}

    arguments = ({"a": jnp.ones(3)}, jnp.full(3, 2.0))
    graph = rs.graph.trace(net, *arguments, gate=5.0, state=jnp.arange(2))
    assert [*map(str, graph.inputs)] == ["params['a']", "others[0]", "gate", "state"]
    assert {place: str(value) for place, value in graph.outputs.items()} == {
        "result['number']": "3",
        "result['rest']": "state",
        "result['sum']": "result['sum'].1",
    }
    expected = net(*arguments, gate=5.0, state=jnp.arange(2))
    jax.tree.map(np.testing.assert_array_equal, graph.to_cell()(*arguments, gate=5.0, state=jnp.arange(2)), expected)


def test_types_stand_for_arrays_and_keys_integers_and_none_go_through():
    def cell(params, carry, x):
        noise = jax.random.normal(carry["key"], (2,)) * params
        return {"key": jax.random.fold_in(carry["key"], 1), "count": carry["count"] + 1, "none": None}, x + noise

    carry = {"key": jax.random.key(3), "count": jnp.int32(4), "none": None}
    graph = rs.graph.trace(cell, 0.5, carry, jax.ShapeDtypeStruct((2,), jnp.float32))
    expected, actual = (run(0.5, carry, jnp.ones(2)) for run in (cell, graph.to_cell()))
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    np.testing.assert_array_equal(actual[1], expected[1])
    assert actual[0]["count"] == 5
    assert actual[0]["key"] == expected[0]["key"]
    assert graph.signature.is_cell


def test_a_loop_in_a_cell_and_effects_stay(capfd):
    def cell(params, carry, x):
        jax.debug.print("seen {}", x)
        inner, _ = jax.lax.scan(lambda c, x: (jnp.sin(c * params), None), carry, None, length=3)
        return inner, jax.lax.cond(x > 0, jnp.cos, jnp.sin, inner)

    graph = rs.graph.trace(cell, 0.3, 0.5, 1.0)
    assert [node.has_effects for node in graph.nodes].count(True) == 1
    expected = jax.jit(cell)(0.3, 0.5, 1.0)
    jax.effects_barrier()
    capfd.readouterr()
    np.testing.assert_allclose(jax.jit(graph.to_cell())(0.3, 0.5, 1.0), expected, rtol=1e-6)
    jax.effects_barrier()
    assert capfd.readouterr().out == "seen 1.0\n"


def test_a_graph_traced_from_its_own_cell_is_equal_and_another_is_not(lstm):
    cell, params, carry, xs = lstm
    graph = rs.graph.trace(cell, params, carry, xs[0])
    again = rs.graph.trace(graph.to_cell(), params, carry, xs[0])
    assert graph == again
    assert hash(graph) == hash(again)
    assert str(graph) == str(again)
    assert graph != rs.graph.trace(cell, params, carry, xs[0, :, :].astype(jnp.bfloat16))
    assert graph != rs.graph.trace(cell, params, (carry[0][:1], carry[1][:1]), xs[0, :1])
    assert graph != "graph"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x - x[::-1], lambda x: x[::-1] - x),
        (lambda x: jnp.cumsum(x), lambda x: jnp.cumsum(x, axis=0)[::-1]),
        (lambda x: jax.lax.map(lambda x: x * 2.0, x), lambda x: jax.lax.map(lambda x: x * 3.0, x)),
    ],
)
def test_structures_differ_by_numbers_order_and_inner_loops(one, other):
    x = jnp.ones(3)
    graph = rs.graph.trace(one, x)
    assert graph == rs.graph.trace(one, x)
    assert graph != rs.graph.trace(other, x)


def test_a_graph_cannot_be_changed(lstm):
    cell, params, carry, xs = lstm
    graph = rs.graph.trace(cell, params, carry, xs[0])
    with pytest.raises(AttributeError):
        graph.names = {}
    with pytest.raises(TypeError):
        graph.nodes[0].params["precision"] = "high"
    with pytest.raises(TypeError):
        graph.producers()["x"] = (0, 0)


def test_wrong_arguments_are_errors_before_any_compute(lstm):
    cell, params, carry, xs = lstm
    run = rs.graph.trace(cell, params, carry, xs[0]).to_cell()
    with pytest.raises(TypeError, match=r"`x` must have the type that was traced, float32\[2,3\]; got float32\[1,3\]"):
        run(params, carry, xs[0, :1])
    with pytest.raises(TypeError, match=r"`carry\[1\]` must have the type .* got bfloat16\[2,4\]"):
        run(params, (carry[0], carry[1].astype(jnp.bfloat16)), xs[0])
    with pytest.raises(TypeError, match=r"must have the structure that was traced, .*; got \(\*, \(\*,\), \*\)"):
        run(1.0, carry[:1], xs[0])
    with pytest.raises(TypeError, match=r"an array or a number; got str at `x`"):
        rs.graph.trace(cell, params, carry, "x")
    with pytest.raises(TypeError, match=r"every leaf of the results must be .*; got str at `result\['b'\]`"):
        rs.graph.trace(lambda x: {"a": x, "b": "text"}, 1.0)


def test_functions_without_arguments_or_results_are_graphs():
    assert repr(rs.graph.trace(lambda: 3)) == "Graph of 0 nodes: () -> result"
    assert rs.graph.trace(lambda: jnp.full(2, 3.0)).to_cell()().tolist() == [3.0, 3.0]
    nothing = rs.graph.trace(lambda x: None, 1.0)
    assert nothing.to_cell()(2.0) is None
    assert str(nothing).splitlines()[-1] == "outputs"


def test_the_cell_of_a_graph_is_mapped_sharded_and_exported():
    """Graphs are made and rewritten inside these, where types are symbolic or vary over a mesh."""
    cell, x = rs.cells.GRU(3), jnp.full((2, 3), 0.3)
    params = cell.init(jax.random.key(0), input_size=3)
    carry = cell.initial_carry(x)
    rewrites = (rs.graph.merge_common, rs.graph.fuse_round_trips, rs.graph.remove_reshapes_for_dot)

    def step(params, carry, x):
        graph = rs.graph.fuse_names(rs.graph.trace(cell, params, carry, x))
        for rewrite in (*rewrites, *rs.graph.ENGINE_PASSES.values(), rs.graph.remove_dead_ends):
            graph = rewrite(graph)
        return graph.to_cell()(params, carry, x)

    expected = cell(params, carry, x)[1]
    mapped = jax.vmap(step, in_axes=(None, 0, 0))(params, carry, x)[1]
    np.testing.assert_allclose(mapped, expected, rtol=1e-6)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")
    sharded = jax.shard_map(step, mesh=mesh, in_specs=(jax.sharding.PartitionSpec(), spec, spec), out_specs=spec)
    np.testing.assert_allclose(jax.jit(sharded)(params, carry, x)[1], expected, rtol=1e-6)
    [rows] = jax.export.symbolic_shape("n")
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, 3), leaf.dtype), (carry, x))
    exported = jax.export.export(jax.jit(step))(params, *types)
    np.testing.assert_allclose(exported.call(params, carry, x)[1], expected, rtol=1e-6)


@pytest.mark.bad_input
def test_what_is_not_a_function_is_an_error(lstm):
    cell, params, carry, xs = lstm
    with pytest.raises(TypeError, match="must be a cell or a function; got dict"):
        rs.graph.trace(params, cell, carry, xs)


def test_networkx_gets_values_and_operations():
    networkx = pytest.importorskip("networkx")
    graph = rs.graph.trace(lambda x, y: jnp.sin(x) * y, 1.0, 2.0)
    converted = graph.to_networkx()
    assert networkx.is_bipartite(converted)
    assert networkx.shortest_path(converted, ("x", 0), ("result", 1)) == [("x", 0), 0, ("sin", 1), 1, ("result", 1)]
    assert [name for name, output in converted.nodes(data="output") if output] == [("result", 1)]
    assert converted.nodes[1] == {"kind": "operation", "operation": "mul"}


def test_traces_of_a_cell_with_a_scan_in_it_are_equal_and_those_of_another_scan_are_not():
    def cell(lower, carry, xs):
        return carry, rs.scan(lambda _, total, x: (lower(total, x),) * 2, (), carry, xs)[1].sum()

    xs = jnp.linspace(0.1, 0.7, 5)
    graph = rs.graph.trace(partial(cell, lambda total, x: 0.5 * total + x), 0.3, xs)
    assert graph == rs.graph.trace(graph.to_cell(), 0.3, xs)
    assert graph == rs.graph.trace(partial(cell, lambda total, x: 0.5 * total + x), 0.3, xs)
    assert graph != rs.graph.trace(partial(cell, lambda total, x: 0.25 * total + x), 0.3, xs)
    assert graph != rs.graph.trace(partial(cell, lambda total, x: 0.5 * total * x), 0.3, xs)


def test_networkx_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[graph\]"'):
        rs.graph.trace(jnp.sin, 1.0).to_networkx()


@pytest.mark.parametrize("seed", random_seeds(quick=(7, 22, 56, 105, 161, 162, 583)))
def test_random_cells_equal_their_graphs_after_any_rewrites(seed):
    check_graph(seed)
