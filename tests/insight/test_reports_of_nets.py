"""explain, memory_report, plan and Memory.fit on nets, and with lengths, masks and resets."""

import io

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight import kept_bytes, temporary_bytes
from rnnscan.insight.memory_report import memory_report
from tiers import variants


LENGTH, BATCH, FEATURES = 20, 3, 5
NETS = {
    "layer": rs.layer(cells.LSTM(4)),
    "reversed": rs.layer(cells.GRU(4), reverse=True),
    "bidirectional": rs.bidirectional(cells.LSTM(4), cells.GRU(3)),
    "chain": rs.chain(rs.layer(cells.LSTM(4)), rs.layer(cells.GRU(3)), rs.layer(cells.MinGRU(3))),
    "nested": rs.chain(rs.bidirectional(cells.LSTM(2)), rs.chain(rs.layer(cells.LSTM(4)), rs.layer(cells.RNN(3)))),
}
SCANS = {
    "layer": ["layer"],
    "reversed": ["layer"],
    "bidirectional": ["forward", "backward"],
    "chain": ["net_0", "net_1", "net_2"],
    "nested": ["net_0.forward", "net_0.backward", "net_1.net_0", "net_1.net_1"],
}
ROWS = {
    "none": {},
    "lengths": {"seq_lengths": jax.ShapeDtypeStruct((BATCH,), jnp.int32)},
    "mask": {"mask": jax.ShapeDtypeStruct((LENGTH, BATCH), jnp.bool_)},
    "reset": {"reset": jax.ShapeDtypeStruct((LENGTH, BATCH), jnp.bool_)},
}


def shapes_of(net):
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), FEATURES))
    return params, jax.ShapeDtypeStruct((LENGTH, BATCH, FEATURES), jnp.float32)


REPORTED = {
    "layer, lengths": ("layer", "lengths", rs.Memory()),
    "bidirectional": ("bidirectional", "none", rs.Memory()),
    "chain, reset": ("chain", "reset", rs.Memory()),
    "nested, mask": ("nested", "mask", rs.Memory()),
    "reversed, reset, segments": ("reversed", "reset", rs.Memory(recompute="all", segment=4)),
    "bidirectional, lengths, segments": ("bidirectional", "lengths", rs.Memory(segment=4)),
    "chain, mask, segments": ("chain", "mask", rs.Memory(recompute="all", segment=4)),
}


@pytest.mark.parametrize(("name", "rows", "memory"), variants(REPORTED, ["nested, mask"]))
def test_a_net_is_reported_scan_by_scan(name, rows, memory):
    net = NETS[name]
    params, xs = shapes_of(net)
    carry = jax.eval_shape(net.initial_carry, xs)
    report = memory_report(net, params, xs, memory=memory, compile=False, **ROWS[rows])
    assert list(report.scans) == SCANS[name]
    for scan in (*report.scans.values(), report):
        assert scan.predicted
        assert scan.training.kept_bytes == scan.training.counted_bytes
    names, given = list(ROWS[rows]), list(ROWS[rows].values())

    def run(params, xs, carry, *given):
        return net(params, xs, carry=carry, memory=memory, **dict(zip(names, given, strict=True)))

    assert report.training.counted_bytes == kept_bytes(run, params, xs, carry, *given)
    assert (report.length, report.batch) == (LENGTH, BATCH)


def test_what_jax_keeps_of_a_net_is_counted():
    params, xs = shapes_of(NETS["layer"])
    for memory, options in ((None, {}), (rs.Memory(), {"padding": "hold", **ROWS["mask"]})):
        report = memory_report(NETS["layer"], params, xs, memory=memory, compile=False, **options)
        assert not report.predicted
        assert report.training.kept_bytes == report.training.counted_bytes


def test_a_report_of_a_net_shows_its_scans_and_the_whole():
    net = NETS["nested"]
    report = rs.memory_report(net, *shapes_of(net), compile=False)
    explanation = rs.explain(net, *shapes_of(net))
    for shown, words in (
        (report, ("in all", "net_1.net_0: ", "params")),
        (explanation, ("net_0.backward", "dot_general")),
    ):
        written = io.StringIO()
        Console(file=written, width=200).print(shown)
        for text in (str(shown), written.getvalue(), shown._repr_html_()):
            for word in (*words, "LSTM(hidden_size=4)"):
                assert word in text
    assert list(explanation.scans) == list(report.scans)


def test_a_net_is_explained_scan_by_scan_as_its_cells_are():
    net = rs.chain(rs.layer(cells.LSTM(4)), rs.layer(cells.MinGRU(3)))
    params, xs = shapes_of(net)
    scans = rs.explain(net, params, xs=xs, memory=rs.Memory(recompute="all")).scans
    inputs = {"net_0": xs, "net_1": jax.ShapeDtypeStruct((LENGTH, BATCH, 4), jnp.float32)}
    for name, layer in zip(scans, net.nets, strict=True):
        x = jax.ShapeDtypeStruct(inputs[name].shape[1:], jnp.float32)
        carry = jax.eval_shape(layer.cell.initial_carry, x)
        alone = rs.explain(layer.cell, params[name], carry, inputs[name], memory=rs.Memory(recompute="all"))
        assert (scans[name].equations, scans[name].carry) == (alone.equations, alone.carry)


def test_resets_and_lengths_are_in_the_step_that_is_explained():
    cell = cells.MinGRU(4)
    params, xs = shapes_of(rs.layer(cell))
    carry = jax.eval_shape(cell.initial_carry, jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype))
    plain = rs.explain(cell, params, carry, xs)
    assert rs.explain(cell, params, carry, xs, engine="lax").engine == "lax"
    for rows in ("lengths", "reset"):
        found = rs.explain(cell, params, carry, xs, **ROWS[rows])
        operations = [equation.operation for equation in found.equations]
        assert operations.count("select_n") > [e.operation for e in plain.equations].count("select_n")
        assert found.length == LENGTH


@pytest.mark.slow
def test_a_plan_for_a_net_is_the_budget_of_the_whole_net():
    """Its training step, the loss of which reads the outputs, needs no more than the budget."""
    net = rs.chain(rs.layer(cells.RNN(8)), rs.layer(cells.RNN(8)))
    params, _ = shapes_of(net)
    xs, ys = (jax.ShapeDtypeStruct((12, BATCH, size), jnp.float32) for size in (FEATURES, 8))

    def needed(memory):
        def step(params, xs, target):
            return jax.value_and_grad(lambda params: jnp.mean((net(params, xs, memory=memory)[1] - target) ** 2))(
                params
            )

        return temporary_bytes(jax.jit(step).lower(params, xs, ys).compile())

    budget = int(0.8 * needed(rs.Memory()))
    planned = rs.plan(net, params, xs, budget=budget)
    assert planned.choice != rs.Memory()
    found = needed(planned.choice)
    assert found <= budget
    assert needed(rs.Memory.fit(budget)) == found


def test_a_budget_that_nothing_in_a_net_fits():
    net = rs.layer(cells.RNN(4))
    params, _ = shapes_of(net)
    xs = jax.ShapeDtypeStruct((3, BATCH, FEATURES), jnp.float32)
    with pytest.raises(ValueError, match=r"^plan: nothing fits 9 B"):
        jax.eval_shape(lambda *a: net(*a, memory=rs.Memory.fit(9)), params, xs)
