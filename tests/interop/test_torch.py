"""Nets of torch's state dicts compute what torch computed, recorded by tests/goldens/make_interop_goldens.py."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import interop


pytestmark = pytest.mark.usefixtures("x64")

GOLDENS = Path(__file__).parents[1] / "goldens" / "torch_interop.npz"
LSTM, GRU = rs.cells.LSTM(4, param_dtype="float64"), rs.cells.GRU(4, param_dtype="float64")
RNN = rs.cells.RNN(4, param_dtype="float64")
LSTM_PROJECTION = rs.cells.LSTM(4, proj_size=2, param_dtype="float64")

NETS = {
    "lstm_bidirectional_2": ("LSTM", rs.chain(rs.bidirectional(LSTM), rs.bidirectional(LSTM))),
    "lstm_projection_bidirectional_2": (
        "LSTM",
        rs.chain(rs.bidirectional(LSTM_PROJECTION), rs.bidirectional(LSTM_PROJECTION)),
    ),
    "lstm_projection": ("LSTM", rs.layer(rs.cells.LSTM(4, proj_size=3, param_dtype="float64"))),
    "lstm_no_bias": ("LSTM", rs.layer(rs.cells.LSTM(4, use_bias=False, param_dtype="float64"))),
    "lstm_3": ("LSTM", rs.chain(rs.layer(LSTM), rs.layer(LSTM), rs.layer(LSTM))),
    "gru_bidirectional_2": ("GRU", rs.chain(rs.bidirectional(GRU), rs.bidirectional(GRU))),
    "gru_no_bias": ("GRU", rs.layer(rs.cells.GRU(4, use_bias=False, param_dtype="float64"))),
    "rnn_tanh_2": ("RNN", rs.chain(rs.layer(RNN), rs.layer(RNN))),
    "rnn_relu_bidirectional": ("RNN", rs.bidirectional(rs.cells.RNN(4, activation="relu", param_dtype="float64"))),
}


@pytest.fixture(params=NETS)
def golden(request):
    """A net's name, and what torch recorded of it: `{kind: {name: array}}`."""
    kinds = {}
    with np.load(GOLDENS) as file:
        for key in file.files:
            name, *kind_and_name = key.split("/")
            if name == request.param:
                kinds.setdefault(kind_and_name[0], {})[kind_and_name[1]] = file[key]
    return request.param, kinds


def states_of(arrays):
    return (arrays["h"], arrays["c"]) if "c" in arrays else arrays["h"]


def test_the_net_and_its_outputs_and_final_states_are_torchs(golden, assert_trees_close):
    name, recorded = golden
    kind, expected_net = NETS[name]
    options = {"nonlinearity": "relu"} if "relu" in name else {}
    net, params = interop.from_torch(recorded["weights"], kind, **options)
    assert net == expected_net
    carry = interop.carry_from_torch(net, states_of(recorded["inputs"]))
    carry, ys = jax.jit(net)(params, jnp.asarray(recorded["inputs"]["x"]), carry=carry)
    outputs = {"y": ys, "states": interop.carry_to_torch(net, carry)}
    expected = {"y": recorded["outputs"]["y"], "states": states_of(recorded["outputs"])}
    assert_trees_close(outputs, expected, tolerance=1e-9)


def test_states_go_both_ways(golden, assert_equal):
    name, recorded = golden
    _, net = NETS[name]
    states = states_of(recorded["inputs"])
    carry = interop.carry_from_torch(net, states)
    assert jax.tree.structure(carry) == jax.tree.structure(net.initial_carry(jnp.asarray(recorded["inputs"]["x"])))
    assert_equal(interop.carry_to_torch(net, carry), states)


def test_the_goldens_have_biases_that_are_not_zero_and_say_which_torch_made_them():
    with np.load(GOLDENS) as file:
        assert str(file["torch_version"])[0].isdigit()
        biases = [file[key] for key in file.files if "/weights/bias" in key]
    assert len(biases) == 2 * (4 + 4 + 1 + 3 + 4 + 2 + 2)
    assert all(np.all(bias != 0) for bias in biases)


class Tensor:
    """What a tensor of torch is to `from_torch`: numpy's array after `detach().cpu()`."""

    def __init__(self, array, dtype="torch.float32"):
        self.array, self.dtype = array, dtype

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.array.astype(np.float32))

    def __array__(self, dtype=None, copy=None):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.array


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tensors_of_torch_are_taken(dtype, assert_equal):
    random = np.random.default_rng(0)
    shapes = {"weight_ih_l0": (12, 3), "weight_hh_l0": (12, 4)}
    arrays = {name: random.normal(size=shape).astype(jnp.dtype(dtype)) for name, shape in shapes.items()}
    tensors = {name: Tensor(array, f"torch.{dtype}") for name, array in arrays.items()}
    _, params = interop.from_torch(tensors, "GRU")
    assert_equal(params, interop.from_torch(arrays, "GRU")[1])
    assert params["kernel"].dtype == jnp.dtype(dtype)


def test_dropout_between_layers_is_the_chains():
    random = np.random.default_rng(0)
    state_dict = {f"weight_{name}_l{layer}": random.normal(size=(4, 4)) for layer in range(2) for name in ("ih", "hh")}
    net, _ = interop.from_torch(state_dict, "RNN", dropout=0.25)
    assert net.dropout == 0.25
