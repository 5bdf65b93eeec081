"""Rewrites leave the function the same, and do what they say: also where Caffe2's and detectron2's went wrong."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rewriting import assert_same, floats, operations
from rnnscan.graph import Name


pytestmark = pytest.mark.typed

OWN = (
    rs.graph.fuse_names,
    rs.graph.fuse_round_trips,
    rs.graph.merge_common,
    rs.graph.remove_dead_ends,
    rs.graph.remove_reshapes_for_dot,
)


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
