"""The picture of a step shows what explain found."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight.step_picture import COLOURS, GIVEN, _nodes, _place, step_figure


def explained(cell):
    x = jnp.ones((2, 3))
    return rs.explain(cell, cell.init(jax.random.key(0), 3), cell.initial_carry(x), x[None])


def test_the_operations_of_an_rnn_in_their_order_and_kinds():
    nodes = _nodes(explained(cells.RNN(4)), ["h"])
    drawn = {node.text: (node.colour, [source.text for source in node.reads]) for node in nodes if node.text != "@"}
    products = [(node.colour, node.reads[0].text) for node in nodes if node.text == "@"]
    assert products == [(COLOURS["parallel"], "x"), (COLOURS["recurrent"], "h")]
    assert drawn["h\N{PRIME}"] == (GIVEN, ["tanh"])
    assert drawn["y"] == (GIVEN, ["tanh"])
    assert drawn["tanh"] == (COLOURS["recurrent"], ["+"])
    assert [node.name for node in nodes if node.name] == ["preactivation"]


def test_what_joins_values_leads_to_all_of_them():
    """QRNN's product reads the inputs of two steps, side by side."""
    nodes = _nodes(explained(cells.QRNN(4)), ["c", "inputs"])
    (product,) = (node for node in nodes if node.text == "@")
    assert {source.text for source in product.reads} >= {"inputs"}


@pytest.mark.parametrize("cell", [cells.LSTM(4), cells.MLSTM(4)], ids=repr)
def test_no_two_operations_are_in_one_place(cell):
    figure = step_figure(explained(cell), cell.carry_names, "a title")
    (axes,) = figure.axes
    places = [text.get_position() for text in axes.texts]
    assert len(set(places)) == len(places)
    assert axes.get_title(loc="left") == "a title"


@pytest.mark.parametrize("cell", [cells.LSTM(4), cells.MLSTM(4)], ids=repr)
def test_every_arrow_goes_to_the_right(cell):
    nodes = _nodes(explained(cell), cell.carry_names)
    _place(nodes)
    assert all(source.column < node.column for node in nodes for source in node.reads)
