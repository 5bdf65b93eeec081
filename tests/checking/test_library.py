"""Cells, wrappers, nets and modules of the library are what they claim, by all checks."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.attention import Additive
from tiers import variants
from zoo.cases import CASES


NETS = {
    "layer": rs.layer(rs.cells.GRU(4)),
    "reversed layer": rs.layer(rs.cells.GRU(4), reverse=True),
    "bidirectional": rs.bidirectional(rs.cells.RNN(4)),
    "chain": rs.chain(rs.layer(rs.cells.RNN(4)), rs.bidirectional(rs.cells.RNN(3))),
    "chain with dropout": rs.chain(rs.layer(rs.cells.GRU(4)), rs.layer(rs.cells.RNN(3)), dropout=0.5),
}


def assert_holds(report):
    report.raise_if_failed()
    assert len(report.outcomes) == 16


@pytest.mark.parametrize("case", variants(CASES, ["LSTM"]))
def test_a_cell_holds(case):
    with jax.enable_x64(False):
        params = jax.eval_shape(lambda: case.cell.init(jax.random.key(0), case.features[-1]))
    report = rs.check(case.cell, params, None, jax.ShapeDtypeStruct((8, 3, *case.features), jnp.float32))
    assert_holds(report)
    assert "float64, tolerance 1e-09" in report.setting
    applies = {outcome.name for outcome in report.outcomes if outcome.result == "holds"}
    assert applies >= {each.name for each in report.outcomes} - {"parallel", "forms", "export"}


@pytest.mark.parametrize("net", variants(NETS, ["bidirectional"]))
def test_a_net_holds(net):
    report = rs.check(net, net.init(jax.random.key(0), 3), jax.ShapeDtypeStruct((8, 3, 3), jnp.float32))
    assert_holds(report)
    unchecked = {each.name for each in report.outcomes if each.result == "does not apply"}
    assert ("future" in unchecked) == (not net.runs_in_pieces)
    assert ("reverse" in unchecked) == net.runs_in_pieces


@pytest.mark.slow
def test_a_cell_with_attention_holds():
    decoder = rs.attention.decoder(rs.cells.LSTM(4), Additive(4, 5))
    params = decoder.init(jax.random.key(0), 3)
    cell = decoder.over(params, jax.random.normal(jax.random.key(1), (5, 2, 4)))
    assert_holds(rs.check(cell, params, None, jax.ShapeDtypeStruct((8, 2, 3), jnp.float32)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", [rs.dropout(rs.cells.LSTM(4), 0.5, on="recurrent"), rs.dropout(rs.cells.GRU(4), 0.5, each="sequence")]
)
def test_other_dropout_holds(cell):
    assert_holds(rs.check(cell, cell.init(jax.random.key(0), 3), None, jax.ShapeDtypeStruct((8, 3, 3), jnp.float32)))
