"""The built-in transfer functions, beside what JAX infers while it traces, and rnnscan's own analyses."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rnnscan as rs
from fuzz.random_cells import Case
from rnnscan.graph import Name
from rnnscan.memory import Memory


pytestmark = pytest.mark.typed

Host, Device = jax.memory.Space.Host, jax.memory.Space.Device


def lstm_graph():
    cell, x = rs.stack(rs.cells.LSTM(4), rs.cells.GRU(4)), jnp.ones((2, 4))
    params = cell.init(jax.random.key(0), input_size=4)
    return rs.graph.trace(cell, params, cell.initial_carry(x), x)


def loops(x, w):
    """Loops and branches that a status has to go through, in and out."""
    total, rows = jax.lax.scan(lambda c, row: (c + row * w[0], jnp.sin(c)), x[0], x)
    count, total = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.cos(s[1])), (0, total))
    return jax.lax.cond(count > 2, lambda t: jax.nn.relu(t) * 2, lambda t: -t, total), rows


# Dtypes.


@pytest.mark.parametrize(
    "seed", [*range(4, 10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 150))]
)
def test_dtypes_of_random_cells_are_those_that_jax_infers(seed):
    with jax.enable_x64(True):
        case = Case.of(seed)
        params, closed, carry, xs = (case.arguments[group] for group in ("params", "closed", "carry", "xs"))
        x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)
        graph = rs.graph.trace(case.cell(closed), params, jax.tree.map(jnp.asarray, carry), x)
    dtypes = rs.graph.status_of_types(graph, "dtype")
    statuses = rs.graph.infer_status(graph, {name: dtypes[name] for name in graph.inputs}, rs.graph.transfer_dtype)
    assert statuses.known.items() <= dtypes.items()
    operations = {graph.nodes[graph.producers()[name][0]].operation for name in statuses.unknown}
    assert not operations


def test_dtypes_go_backward_and_through_loops_and_branches():
    graph = rs.graph.trace(loops, jnp.ones((3, 4)), jnp.ones((4, 4)))
    for given in ("x", "w", graph.outputs["result[0]"], graph.outputs["result[1]"]):
        known = rs.graph.infer_status(graph, {given: jnp.dtype("bfloat16")}, rs.graph.transfer_dtype).known
        assert {str(known[name]) for name in (*graph.inputs, *graph.outputs.values())} == {"bfloat16"}
    with pytest.raises(
        ValueError, match=r"got dtype\('float32'\) for 'squeeze.1' from node 1, squeeze, and dtype\(bfloat16\)"
    ):
        rs.graph.infer_status(graph, {"x": jnp.dtype("bfloat16"), "w": jnp.dtype("float32")}, rs.graph.transfer_dtype)


# Memory spaces.


def test_a_transfer_moves_a_value_and_all_else_stays_in_its_space():
    """detectron2: copies flip the device, and other operations have one."""

    def function(x, y, unused):
        there = jax.device_put(jnp.sin(x), Device)
        rows = jax.lax.scan(lambda c, row: (c + jax.device_put(row, Device), row * 2.0), there[0], jnp.cos(x))
        return rows, there * y

    graph = rs.graph.trace(function, jnp.ones((2, 3)), jnp.ones((2, 3)), 1.0)
    statuses = rs.graph.infer_status(graph, {"x": Host}, rs.graph.transfer_memory_space)
    spaces = {str(name): space for name, space in statuses.known.items()}
    assert (spaces["sin.1"], spaces["cos.1"], spaces["y"]) == (Host, Host, Device)
    assert [statuses.known[graph.outputs[place]] for place in ("result[0][0]", "result[0][1]", "result[1]")] == [
        Device,
        Host,
        Device,
    ]
    assert statuses.unknown == (Name("unused"),)
    with pytest.raises(ValueError, match=r"got MemorySpace.Host for 'y' from `known`, and MemorySpace.Device from"):
        rs.graph.infer_status(graph, {"y": Host}, rs.graph.transfer_memory_space)


# Shardings.


def test_shardings_are_those_that_jax_infers():
    def function(x, w, b):
        hidden = jnp.tanh(x @ w + b)
        rows = jnp.concatenate([hidden, hidden * 2.0], axis=1)[:, :5].sum(1)
        heads = hidden.reshape(4, 3, 2, 2).transpose(0, 2, 1, 3)
        scan = jax.lax.scan(lambda c, h: (c + h, jnp.max(h, axis=1)), hidden * 0, jnp.stack([hidden, hidden]))
        positive = jnp.where(hidden > 0, hidden, 0.0)
        best = jnp.argmax(hidden, axis=1)
        written = jax.lax.dynamic_update_slice(hidden, hidden[:, :2], (0, 3))
        return positive.T, rows[:, None], heads[..., 0], scan, jnp.arange(3.0), best, written, jnp.sort(w, axis=0)

    mesh = jax.make_mesh((2, 1), ("rows", "units"), axis_types=(AxisType.Explicit,) * 2)
    specs = P("rows", None), P(None, None), P(None)
    with jax.set_mesh(mesh):
        types = [
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
            for shape, spec in zip([(4, 3), (3, 12), (12,)], specs, strict=True)
        ]
        graph = rs.graph.trace(function, *types)
    expected = {name: sharding.spec for name, sharding in rs.graph.status_of_types(graph, "sharding").items()}
    known = dict(zip(graph.inputs, specs, strict=True))
    statuses = rs.graph.infer_status(graph, known, rs.graph.transfer_sharding)
    assert {name: tuple(spec) for name, spec in statuses.known.items()} == {
        name: tuple(spec) for name, spec in expected.items() if name not in statuses.unknown
    }
    assert statuses.unknown == ()


def test_shardings_that_do_not_agree_are_an_error_and_what_mixes_axes_is_unknown():
    graph = rs.graph.trace(lambda x, y: (x + y, x @ y), jnp.ones((4, 4)), jnp.ones((4, 4)))

    def infer(x, y):
        return rs.graph.infer_status(graph, {"x": x, "y": y}, rs.graph.transfer_sharding)

    with pytest.raises(
        ValueError, match=r"node 0, add, .* got 'a' for 'x' and 'b' for 'y' along axis 0 of 'result\[0\].1'"
    ):
        infer(P("a", None), P("b", None))
    assert tuple(infer(P("a"), P(None, "b")).known[graph.outputs["result[1]"]]) == ("a", "b")
    contracted = infer(P(None, "a"), P("a", None))
    assert contracted.unknown == tuple(graph.outputs.values())
    assert infer(P("a", None), P(None, "a")).unknown == tuple(graph.outputs.values())


# Recompute and kinds of work.


def test_recompute_agrees_with_the_rule_of_memory_and_tells_what_is_missing():
    graph = lstm_graph()
    for memory in (Memory(), Memory(recompute="all"), Memory(offload=("gates",))):
        expected = rs.graph.status_of_memory(graph, memory)
        there = {name: status for name, status in expected.items() if status != "recomputed"}
        statuses = rs.graph.infer_status(graph, there, rs.graph.transfer_recompute)
        assert statuses.known == expected
        assert statuses.unknown == ()
    gates = Name("gates", 1)
    only = rs.graph.infer_status(graph, {gates: "kept"}, rs.graph.transfer_recompute)
    split = graph.nodes[graph.consumers()[gates][0][0]]
    assert {only.known[name] for name in split.outputs} == {"recomputed"}
    assert Name("x") in only.unknown
    assert graph.outputs["y"] in only.unknown  # It needs the carry.


def test_the_kind_of_work_follows_from_that_of_the_loops():
    graph = lstm_graph()
    expected = rs.graph.status_of_work(graph)
    loops = {name: kind for name, kind in expected.items() if kind in ("linear", "recurrent")}
    given = {name: expected[name] for name in graph.inputs}
    statuses = rs.graph.infer_status(graph, {**given, **loops}, rs.graph.transfer_work)
    assert statuses.known == expected
    with pytest.raises(ValueError, match="got 'parallel' for 'x' from `known`, and 'recurrent' from `known`"):
        rs.graph.infer_status(graph, {"x": "parallel", Name("x"): "recurrent"}, rs.graph.transfer_work)
