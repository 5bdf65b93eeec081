"""Rewrites leave the function the same, and do what they say: also where Caffe2's and detectron2's went wrong."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.graph import Name


pytestmark = pytest.mark.typed

RANDOM = np.random.default_rng(5)
OWN = (
    rs.graph.fuse_names,
    rs.graph.fuse_round_trips,
    rs.graph.merge_common,
    rs.graph.remove_dead_ends,
    rs.graph.remove_reshapes_for_dot,
)


def floats(*shape, dtype=jnp.float32):
    return jnp.asarray(RANDOM.normal(size=shape), dtype)


def operations(graph):
    return [node.operation for node in graph.nodes]


def assert_same(rewritten, function, *arguments, rtol=1e-6):
    """Values, and gradients in all float arguments, are those of the function."""

    def total(run, *arguments):
        leaves = jax.tree.leaves(run(*arguments))
        return sum(jnp.sum(jnp.sin(leaf.astype(jnp.float32))) for leaf in leaves), leaves

    places = [place for place, leaf in enumerate(arguments) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    compute = jax.jit(
        jax.value_and_grad(total, argnums=[1 + place for place in places], has_aux=True), static_argnums=0
    )
    expected, actual = compute(function, *arguments), compute(rewritten.to_cell(), *arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.float32(a), np.float32(b), rtol, 1e-6), actual, expected)


# Dead ends.


def test_a_producer_stays_when_only_some_of_its_readers_are_dead():
    """detectron2 tests with all() where any() is meant: one dead reader took the producer from a live one."""

    def function(x):
        shared = jnp.sin(x)
        jnp.tanh(jnp.cos(shared))
        first, _ = jnp.split(shared * 2, 2)
        return first

    graph = rs.graph.trace(function, floats(4))
    live = rs.graph.remove_dead_ends(graph)
    assert operations(live) == ["sin", "mul", "split"]
    assert_same(live, function, floats(4))
    assert rs.graph.remove_dead_ends(live) == live


def test_effects_are_not_dead_ends(capfd):
    def function(x):
        jax.debug.print("sine {}", jnp.sin(x))
        jnp.cos(x)
        return 2 * x

    live = rs.graph.remove_dead_ends(rs.graph.trace(function, 0.0))
    assert operations(live)[0] == "sin"
    assert "cos" not in operations(live)
    assert jax.jit(live.to_cell())(0.0) == 0.0
    jax.effects_barrier()
    assert capfd.readouterr().out == "sine 0.0\n"


# Names.


def chain(x):
    return jnp.tanh(jnp.sin(x)) + jnp.cos(x)


def test_renaming_an_output_reaches_every_reader():
    graph = rs.graph.trace(lambda x: (jnp.sin(x) * jnp.sin(x)[0], jnp.cos(x)), floats(2))
    merged = rs.graph.merge_common(graph)
    renamed = rs.graph.rename_output(merged, 0, 0, "height")
    assert sum(Name("height", 1) in node.inputs for node in renamed.nodes) == 2
    assert Name("sin", 1) not in renamed.consumers()
    assert renamed == merged
    assert renamed.outputs["result[0]"] == merged.outputs["result[0]"]


@pytest.mark.parametrize("taken", ["x", "cos", "tanh.1", "result"])
def test_a_name_that_is_taken_is_an_error(taken):
    """detectron2's rename_op_output does not look: two values get one name, and readers the wrong one."""
    graph = rs.graph.trace(chain, floats(2))
    with pytest.raises(ValueError, match=r"the new name must be free; got '.*' for 'sin.1', and the graph has"):
        rs.graph.rename_output(graph, 0, 0, taken)
    with pytest.raises(ValueError, match="must be free"):
        rs.graph.rename_input(graph, 1, 0, taken)


def test_renaming_an_input_needs_its_only_reader():
    graph = rs.graph.trace(chain, floats(2))
    assert rs.graph.rename_input(graph, 1, 0, "height").nodes[0].outputs == (Name("height", 1),)
    with pytest.raises(
        ValueError, match=r"must be the only reader of 'x'; got node 2 as well. Pass from_producer=True"
    ):
        rs.graph.rename_input(graph, 0, 0, "angle")
    with pytest.raises(ValueError, match="renames the result of a node; got 'x', an argument"):
        rs.graph.rename_input(graph, 0, 0, "angle", from_producer=True)
    square = rs.graph.trace(lambda x: x * x, 1.0)
    assert rs.graph.rename_input(square, 0, 1, "side").nodes[0].inputs == (Name("side"), Name("side"))
    both = rs.graph.trace(lambda x: (jnp.sin(x), jnp.cos(jnp.sin(x))), 1.0)
    both = rs.graph.merge_common(both)
    with pytest.raises(ValueError, match=r"got the result result\[0\] as well"):
        rs.graph.rename_input(both, 1, 0, "height")
    everywhere = rs.graph.rename_input(both, 1, 0, "height", from_producer=True)
    assert everywhere.outputs["result[0]"] == Name("height", 1)


def test_renaming_what_is_not_there_is_an_error():
    graph = rs.graph.trace(lambda x: 2 * x, 1.0)
    with pytest.raises(ValueError, match=r"only values have names; got position 0 of node 0, the number 2.0"):
        rs.graph.rename_input(graph, 0, 0, "two")
    with pytest.raises(ValueError, match="node 0 has 1 outputs; got the position 1"):
        rs.graph.rename_output(graph, 0, 1, "two")
    with pytest.raises(ValueError, match="ids of nodes go from 0 to 0; got -1"):
        rs.graph.rename_output(graph, -1, 0, "two")


def test_fused_names_stay_for_memory_choices():
    def cell(params, carry, x):
        gates = rs.name(rs.name(x @ params + carry, "gates"), "again")
        carry = jnp.tanh(gates) + rs.name(carry, "old")
        return carry, rs.name(jnp.sin(gates), "y")

    arguments = floats(3, 4), floats(2, 4), floats(2, 3)
    fused = rs.graph.fuse_names(rs.graph.trace(cell, *arguments))
    assert "name" not in operations(fused)
    assert fused.nodes[1].outputs == (Name("gates", 1),)
    assert fused.outputs["y"] == Name("y", 1)
    assert_same(fused, cell, *arguments)
    xs = floats(5, 2, 3)
    kept = [rs.memory_report(run, *arguments[:2], xs) for run in (cell, fused.to_cell())]
    assert str(kept[0]).splitlines()[1:] == str(kept[1]).splitlines()[1:]
    with pytest.raises(ValueError, match="got 'other', and the cell names 'old', 'gates', 'again', 'y'"):
        rs.scan(fused.to_cell(), *arguments[:2], xs, memory=rs.Memory(recompute=("other",)))


# Common subexpressions.


def test_equal_operations_are_merged_and_others_are_not():
    def function(x, y):
        first = jnp.sin(2 * x) + jnp.cos(y)
        second = jnp.sin(2.0 * x) + jnp.cos(y)
        return first * second, jnp.sin(3 * x), x - y, y - x

    graph = rs.graph.trace(function, floats(3), floats(3))
    merged = rs.graph.merge_common(graph)
    assert sorted(operations(merged)) == sorted(["mul", "sin", "cos", "add", "mul", "mul", "sin", "sub", "sub"])
    assert_same(merged, function, floats(3), floats(3))
    assert rs.graph.merge_common(merged) == merged


def test_merged_values_keep_all_their_labels_and_effects_run_twice(capfd):
    def function(x):
        jax.debug.print("seen {}", x)
        jax.debug.print("seen {}", x)
        return rs.name(jnp.sin(x), "a") * rs.name(jnp.sin(x), "b")

    merged = rs.graph.merge_common(rs.graph.fuse_names(rs.graph.trace(function, 1.0)))
    assert operations(merged).count("sin") == 1
    assert list(merged.labels.values()) == [("a", "b")]
    jax.jit(merged.to_cell())(1.0)
    jax.effects_barrier()
    assert capfd.readouterr().out == "seen 1.0\n" * 2


# Round trips.


def test_every_reader_of_a_round_trip_is_rewired():
    """detectron2's fuse_copy_between_cpu_and_gpu rewires the first reader, and the second one dangles."""

    def function(x):
        back = x.astype(jnp.float32).astype(jnp.bfloat16)
        return jnp.sin(back), jnp.cos(back) * back, back

    x = floats(3, dtype=jnp.bfloat16)
    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, x))
    assert operations(fused) == ["sin", "cos", "mul"]
    assert [*map(str, fused.undefined())] == ["x"]
    assert fused.outputs["result[2]"] == Name("x")
    assert_same(fused, function, x, rtol=0.02)


def test_a_graph_without_round_trips_stays_as_it_is():
    """detectron2's ends with an IndexError."""
    graph = rs.graph.trace(chain, floats(2))
    assert rs.graph.fuse_round_trips(graph) == graph
    assert rs.graph.fuse_round_trips(rs.graph.trace(lambda x: x, 1.0)).nodes == ()


def test_the_way_out_stays_where_something_else_reads_it():
    def function(x):
        wide = x.astype(jnp.float32)
        return wide * 2, wide.astype(jnp.bfloat16)

    x = floats(3, dtype=jnp.bfloat16)
    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, x))
    assert operations(fused) == ["convert_element_type", "mul"]
    assert_same(fused, function, x)


@pytest.mark.parametrize(
    ("dtypes", "is_fused"),
    [
        (("bfloat16", "float32", "bfloat16"), True),
        (("float16", "bfloat16", "float16"), False),
        (("float32", "bfloat16", "float32"), False),
        (("float16", "float32", "bfloat16", "float32", "float16"), False),
        (("int8", "int32", "int8"), True),
        (("int8", "uint8", "int8"), False),
        (("int32", "float32", "int32"), False),
        (("int16", "float32", "int16"), True),
        (("uint16", "float16", "uint16"), False),
        (("int8", "bfloat16", "int8"), True),
        (("bool", "int32", "bool"), True),
        (("bool", "bfloat16", "bool"), True),
        (("float32", "int32", "float32"), False),
        (("float8_e4m3fn", "float16", "float8_e4m3fn"), True),
        (("float8_e5m2", "bfloat16", "float32", "float8_e5m2"), True),
        (("float32", "complex64", "float32"), False),
    ],
)
def test_dtypes_go_there_and_back_where_every_value_survives(dtypes, is_fused):
    first, *others = dtypes

    def function(x):
        for dtype in others:
            x = jax.lax.convert_element_type(x.real if x.dtype == "complex64" else x, dtype)
        return x

    x = jnp.arange(-4, 252).astype(first) if first != "bool" else jnp.array([True, False])
    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, x))
    assert (operations(fused) == []) == is_fused
    np.testing.assert_array_equal(np.float32(fused.to_cell()(x)), np.float32(function(x)))
    if is_fused and x.dtype.itemsize == 1 and first != "bool":
        every = jax.lax.bitcast_convert_type(jnp.arange(256, dtype=jnp.uint8), x.dtype)
        np.testing.assert_array_equal(np.float32(function(every)), np.float32(every))


def test_a_trip_may_stop_on_the_way_back():
    def function(x):
        return x.astype(jnp.float16).astype(jnp.float32).astype(jnp.float16) * 2

    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, floats(3)))
    assert operations(fused) == ["convert_element_type", "mul"]
    assert_same(fused, function, floats(3), rtol=1e-3)


def test_transpositions_that_change_nothing_together_are_gone():
    def function(x):
        around = x
        for _ in range(3):
            around = jnp.transpose(around, (1, 2, 0))
        half = jnp.transpose(x, (2, 1, 0))
        return around + jnp.transpose(half, (2, 1, 0)), half, jnp.transpose(x, (1, 0, 2))

    x = floats(2, 3, 4)
    square = floats(3, 3, 3)
    assert operations(rs.graph.fuse_round_trips(rs.graph.trace(function, x))) == ["transpose", "add", "transpose"]
    for each in (x, square):
        assert_same(rs.graph.fuse_round_trips(rs.graph.trace(function, each)), function, each)


def test_trips_within_trips_and_very_long_ones_are_gone():
    def function(x):
        for _ in range(250):
            x = x.T.astype(jnp.float32).T.T.astype(jnp.bfloat16).T
        return x

    x = floats(2, 3, dtype=jnp.bfloat16)
    graph = rs.graph.trace(function, x)
    assert len(graph.nodes) == 1_500
    assert rs.graph.fuse_round_trips(graph).nodes == ()
    assert_same(rs.graph.fuse_round_trips(graph), function, x)


def test_transfers_to_another_memory_space_and_back_are_gone():
    def function(x):
        host = jax.device_put(x, jax.memory.Space.Host)
        back = jax.device_put(host, jax.memory.Space.Device)
        return jnp.sin(back) * back

    graph = rs.graph.trace(function, floats(3))
    assert operations(graph).count("device_put") == 2
    fused = rs.graph.fuse_round_trips(graph)
    assert operations(fused) == ["sin", "mul"]
    expected = jax.make_jaxpr(lambda x: jnp.sin(x) * x)(floats(3))
    assert [eqn.primitive.name for eqn in expected.eqns] == operations(fused)


def test_labels_of_a_fused_trip_move_to_the_value():
    def function(x):
        return jnp.sin(rs.name((2 * x).T.T, "twice"))

    graph = rs.graph.fuse_round_trips(rs.graph.fuse_names(rs.graph.trace(function, floats(2, 3))))
    assert operations(graph) == ["mul", "sin"]
    assert [*graph.labels.values()] == [("twice",)]


# All of them.


def long(x, w, times=800):
    """Each rewrite finds something in each part."""
    for _ in range(times):
        rs.name(jnp.cos(x), "dead")
        x = jnp.sin(x) + jnp.sin(x)
        x = rs.name(x.T.T, "back") * 2.0
        x = (x[None][0] @ w) * 2.0
    return x


@pytest.mark.slow  # test_linear.py counts on small graphs.
def test_rewrites_read_each_of_ten_thousand_equations_a_bounded_number_of_times():
    """By counting reads of equations' operands. Of a quadratic rewrite, there would be millions."""
    graph = rs.graph.trace(long, floats(2, 2), floats(2, 2))
    assert len(graph.nodes) >= 10_000
    count = 0

    class Counted(tuple):
        def __iter__(self):
            nonlocal count
            count += 1
            return super().__iter__()

    for equation in graph.program.equations:
        object.__setattr__(equation, "inputs", Counted(equation.inputs))
    for rewrite in OWN:
        count = 0
        rewritten = rewrite(graph)
        assert count < 20 * len(graph.nodes), rewrite.__name__
        assert len(rewritten.nodes) < len(graph.nodes), rewrite.__name__
    count = 0
    ids = range(len(graph.nodes) - 100, len(graph.nodes))
    rs.graph.replace(graph, ids, lambda x, *others: x)
    assert count < 20 * len(graph.nodes)


def test_rewrites_are_pure():
    graph = rs.graph.trace(partial(long, times=2), floats(2, 2), floats(2, 2))
    before = str(graph)
    for rewrite in (*OWN, *rs.graph.ENGINE_PASSES.values()):
        rewrite(graph)
    assert str(graph) == before


def test_the_engines_passes_rewrite_graphs():
    def cell(params, carry, x):
        return jnp.tanh(carry @ params["u"]), (x @ params["w"], jnp.sin(x @ params["v"]))

    params = {name: floats(3, 4) for name in ("w", "v")} | {"u": floats(4, 4)}
    arguments = params, floats(2, 4), floats(2, 3)
    graph = rs.graph.trace(cell, *arguments)
    assert {"join_products", "merge_products", "remove_repeats"} <= rs.graph.ENGINE_PASSES.keys()
    joined = rs.graph.ENGINE_PASSES["join_products"](graph)
    assert [operations(each).count("dot_general") for each in (graph, joined)] == [3, 2]
    expected, actual = cell(*arguments), joined.to_cell()(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), actual, expected)
    printing = rs.graph.trace(lambda x: jax.debug.print("{}", x) or x, 1.0)
    with pytest.raises(ValueError, match="graphs without effects; got effects in the nodes '0'"):
        rs.graph.ENGINE_PASSES["join_products"](printing)


def test_each_upstream_bug_in_a_net_of_a_thousand_equations():
    """What small nets do not show: windows of operations, numbers of paths, and readers far apart."""

    def function(x, w):
        around = x.T.T
        product = x[None][0] @ w
        dead = jnp.cos(product)
        y = x
        for _ in range(200):
            y = jnp.sin(y) * y  # Twice as many paths each time.
            dead = jnp.tanh(dead) * jnp.cos(dead)
        return y + around, product, around

    arguments = floats(3, 3), floats(3, 3)
    graph = rs.graph.trace(function, *arguments)
    assert len(graph.nodes) > 1_000
    live = rs.graph.remove_dead_ends(graph)
    assert len(live.nodes) == len(graph.path([], graph.outputs.values())) == 406
    fused = rs.graph.fuse_round_trips(live)
    assert "transpose" not in operations(fused)
    assert fused.outputs["result[2]"] == Name("x")
    products = rs.graph.remove_reshapes_for_dot(fused)
    assert sorted(set(operations(products))) == ["add", "dot_general", "mul", "sin"]
    last = len(products.nodes) - 1
    with pytest.raises(ValueError, match="must be free"):
        rs.graph.rename_output(products, last, 0, "sin.1")
    renamed = rs.graph.rename_output(products, 0, 0, "first")
    assert set(rs.graph.infer_status(renamed, {"w": "host"}).known.values()) == {"host"}
    assert rs.graph.infer_status(renamed, {"w": "host"}).unknown == ()
    assert len(renamed.path(["x"], [renamed.outputs["result[0]"]])) == 401
    for one, other in zip(renamed.to_cell()(*arguments), function(*arguments), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)
