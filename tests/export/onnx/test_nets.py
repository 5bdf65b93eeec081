"""Nets of LSTM, GRU and RNN as ONNX's own operators: onnxruntime agrees with the nets to 1e-5."""

from itertools import product

import jax
import pytest

import rnnscan as rs
import tiers
from onnx_files import arguments, check
from rnnscan import cells


onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CELLS = {
    "LSTM": cells.LSTM(4),
    "LSTM without bias": cells.LSTM(4, use_bias=False),
    "LSTM with peepholes": cells.LSTM(4, peepholes=True),
    "LSTM with coupled gates": cells.LSTM(4, coupled_gates=True),
    "LSTM with coupled gates and peepholes": cells.LSTM(
        4, coupled_gates=True, peepholes=True, gate_activation="hard_sigmoid"
    ),
    "LSTM with other activations": cells.LSTM(4, activation="softsign", gate_activation=jax.nn.hard_sigmoid),
    "GRU": cells.GRU(4),
    "GRU without bias": cells.GRU(4, use_bias=False),
    "GRU, reset before": cells.GRU(4, reset_after=False),
    "GRU, reset before, without bias": cells.GRU(4, reset_after=False, use_bias=False),
    "GRU with other activations": cells.GRU(4, activation="elu", gate_activation="hard_sigmoid"),
    "RNN": cells.RNN(4),
    "RNN without bias": cells.RNN(4, use_bias=False),
    "RNN with relu": cells.RNN(4, activation="relu"),
}
ACTIVATIONS = {
    name: name
    for name in ["elu", "hard_sigmoid", "identity", "leaky_relu", "relu", "sigmoid", "softplus", "softsign", "tanh"]
} | {"jax's hard_sigmoid": jax.nn.hard_sigmoid}
DIRECTIONS = {
    "forward": rs.layer,
    "reverse": lambda cell: rs.layer(cell, reverse=True),
    "both": rs.bidirectional,
    "sum": lambda cell: rs.bidirectional(cell, merge="sum"),
    "mean": lambda cell: rs.bidirectional(cell, merge="mean"),
    "product": lambda cell: rs.bidirectional(cell, merge="product"),
    "two operators": lambda cell: rs.bidirectional(cell, cells.GRU(5, use_bias=False)),
    "two operators, mean": lambda cell: rs.bidirectional(cell, cells.RNN(4), merge="mean"),
}
NETS = {
    "chain": rs.chain(rs.layer(cells.LSTM(4)), rs.layer(cells.GRU(5)), dropout=0.5),
    "chain of both directions": rs.chain(rs.bidirectional(cells.LSTM(4)), rs.bidirectional(cells.RNN(3), merge="sum")),
    "stack": rs.layer(rs.stack(cells.LSTM(4), rs.dropout(cells.GRU(5), 0.5))),
    "reversed stack": rs.layer(rs.stack(cells.RNN(4), cells.LSTM(4), residual=[1], dropout=0.5), reverse=True),
    "residual": rs.layer(rs.residual(rs.dropout(cells.GRU(3), 0.5))),
    "both directions of stacks": rs.bidirectional(rs.stack(cells.LSTM(4), rs.residual(cells.GRU(4)))),
    "one dropped": rs.bidirectional(rs.dropout(cells.GRU(4), 0.5), cells.GRU(4)),
}


def by_cell():
    for (name, cell), (way, make), lengths, initial in product(
        CELLS.items(), DIRECTIONS.items(), (True, False), (True, False)
    ):
        yield f"{name}, {way}, {lengths=}, {initial=}", (make(cell), lengths, initial)


QUICK = [
    "LSTM, both, lengths=True, initial=True",
    "LSTM without bias, reverse, lengths=True, initial=False",
    "LSTM with peepholes, sum, lengths=False, initial=True",
    "LSTM with coupled gates and peepholes, forward, lengths=True, initial=True",
    "LSTM with other activations, product, lengths=True, initial=True",
    "GRU, forward, lengths=False, initial=False",
    "GRU, two operators, lengths=True, initial=True",
    "GRU, reset before, mean, lengths=True, initial=True",
    "GRU with other activations, reverse, lengths=True, initial=True",
    "RNN, two operators, mean, lengths=True, initial=False",
    "RNN without bias, both, lengths=False, initial=True",
]


@pytest.mark.parametrize(("net", "lengths", "initial"), tiers.variants(dict(by_cell()), QUICK))
def test_cells_in_all_directions(tmp_path, net, lengths, initial):
    check(tmp_path / "net.onnx", net, arguments(net, lengths=lengths, initial=initial))


def by_net():
    for (name, net), lengths, initial in product(NETS.items(), (True, False), (True, False)):
        yield f"{name}, {lengths=}, {initial=}", (net, lengths, initial)


@pytest.mark.parametrize(
    ("net", "lengths", "initial"),
    tiers.variants(
        dict(by_net()),
        [
            "chain of both directions, lengths=True, initial=True",
            "reversed stack, lengths=True, initial=True",
            "both directions of stacks, lengths=True, initial=False",
        ],
    ),
)
def test_nets_of_several_layers(tmp_path, net, lengths, initial):
    check(tmp_path / "net.onnx", net, arguments(net, lengths=lengths, initial=initial))


def test_one_direction_has_an_initial_carry(tmp_path):
    net = rs.bidirectional(cells.GRU(4))
    inputs = arguments(net, lengths=True, initial=True)
    inputs["carry"] = (None, inputs["carry"][1])
    found = check(tmp_path / "net.onnx", net, inputs)
    assert list(found) == ["ys", "last_forward_hidden", "last_backward_hidden"]


def by_activation():
    for (name, one), (other_name, other) in product(ACTIVATIONS.items(), list(ACTIVATIONS.items())[::3]):
        for kind, make in product((cells.LSTM, cells.GRU), (rs.layer, rs.bidirectional)):
            cell = kind(4, activation=one, gate_activation=other)
            yield f"{kind.__name__}, {make.__name__}, {name}, {other_name}", (make(cell),)
        pair = rs.bidirectional(cells.RNN(4, activation=one), cells.RNN(4, activation=other))
        yield f"RNN, {name}, {other_name}", (pair,)


@pytest.mark.slow
@pytest.mark.parametrize("net", tiers.variants(dict(by_activation()), []))
def test_activations(tmp_path, net):
    # Few steps and small weights: unbounded activations grow, and onnxruntime's softplus is NaN above 88.
    check(tmp_path / "net.onnx", net, arguments(net, lengths=True, initial=True, steps=3), scale=0.3)
