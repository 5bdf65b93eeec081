"""The table of gate orders, and what reorders by it."""

import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan.interop import reorder_gates
from rnnscan.interop.gates import LAYOUTS, GateWeights, find_layout


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def test_every_library_has_the_gates_of_rnnscan_in_an_order_of_its_own():
    for library, kinds in LAYOUTS.items():
        for kind, layout in kinds.items():
            assert sorted(layout.gates) == sorted(LAYOUTS["rnnscan"][kind].gates), (library, kind)
            assert set(layout.peepholes) <= set("ifo"), (library, kind)


# From the documentations: of torch, Keras (i f c o), Caffe2, DL4J (a f o g), ONNX (iofc).
LSTM_ORDERS = {"torch": "ifgo", "Keras": "ifgo", "cuDNN": "ifgo", "Caffe2": "ifog", "DL4J": "gfoi", "onnx": "iofg"}


@pytest.mark.parametrize(("library", "order"), LSTM_ORDERS.items())
def test_a_library_stands_for_its_order(library, order):
    fused = jnp.arange(24).reshape(3, 8)
    assert jnp.array_equal(reorder_gates(fused, library, "ifgo"), reorder_gates(fused, order, "rnnscan"))
    assert jnp.array_equal(reorder_gates(reorder_gates(fused, library, "rnnscan"), "rnnscan", library), fused)


def test_rows_are_the_first_axis():
    fused = jnp.arange(12).reshape(6, 2)
    assert (
        reorder_gates(fused, "onnx", "torch", kind="GRU", axis=0).tolist()
        == fused[jnp.array([2, 3, 0, 1, 4, 5])].tolist()
    )


def test_orders_that_are_not_known_are_refused():
    with pytest.raises(
        ValueError, match=r"`source` must be an order of the gates i f g o, or a library; got 'icfo'\..*onnx"
    ):
        reorder_gates(np.zeros(8), "icfo", "torch")
    with pytest.raises(ValueError, match=r"got 'troch'\. .* rnnscan 'ifgo', .*Did you mean 'torch'\?"):
        reorder_gates(np.zeros(8), "ifgo", "troch")
    with pytest.raises(
        ValueError, match=r"`kind` must be one of 'LSTM', 'GRU', 'RNN', 'MGU', 'ConvLSTM', .*; got 'QRNN'"
    ):
        reorder_gates(np.zeros(8), "ifgo", "ifgo", kind="QRNN")
    with pytest.raises(ValueError, match=r"`axis` must have 4 equal blocks, .*; got axis -1 of \(16, 3\)"):
        reorder_gates(np.zeros((16, 3)), "ifgo", "torch")


def test_a_layout_without_a_second_bias_writes_one():
    blocks = {gate: np.full((2, 3), number) for number, gate in enumerate("rzn")}
    biases = {gate: np.full(3, number) for number, gate in enumerate("rzn")}
    weights = GateWeights(blocks, blocks, biases, recurrent_bias=np.full(3, 9))
    one, two = find_layout("", "Flax", "GRU"), find_layout("", "ONNX", "GRU")
    assert [bias.tolist() for bias in weights.biases(one)] == [[0, 0, 0, 1, 1, 1, 2, 2, 2]]
    assert [bias.tolist() for bias in weights.biases(two)] == [[1, 1, 1, 0, 0, 0, 2, 2, 2], [0, 0, 0, 0, 0, 0, 9, 9, 9]]
