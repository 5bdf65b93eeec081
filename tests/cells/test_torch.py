"""Values and gradients are those of torch.nn, recorded by tests/goldens/make_torch_goldens.py."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs


pytestmark = pytest.mark.usefixtures("x64")

GOLDENS = Path(__file__).parents[1] / "goldens" / "torch_rnn.npz"

LSTM, GRU = rs.cells.LSTM(4), rs.cells.GRU(4)
NETS = {
    "lstm": (LSTM,),
    "lstm_2": (LSTM, LSTM),
    "gru": (GRU,),
    "gru_2": (GRU, GRU),
    "rnn_tanh": (rs.cells.RNN(4),),
    "rnn_relu": (rs.cells.RNN(4, activation="relu"),),
}


@pytest.fixture(params=NETS)
def recorded(request):
    """One net's layers, and what torch recorded of it: `{kind: {name: array}}`."""
    kinds = {}
    with np.load(GOLDENS) as file:
        for key in file.files:
            net, *kind_and_name = key.split("/")
            if net == request.param:
                kind, name = kind_and_name
                kinds.setdefault(kind, {})[name] = jnp.asarray(file[key])
    return NETS[request.param], kinds


def to_params(layers, weights):
    """Torch's weights as rnnscan's: rows there are columns here, gates are in the same order, two biases are one."""
    return {f"layer_{number}": layer_params(cell, weights, f"l{number}") for number, cell in enumerate(layers)}


def layer_params(cell, weights, layer):
    of_input, of_hidden = weights[f"bias_ih_{layer}"], weights[f"bias_hh_{layer}"]
    params = {"kernel": weights[f"weight_ih_{layer}"].T, "recurrent_kernel": weights[f"weight_hh_{layer}"].T}
    if not isinstance(cell, rs.cells.GRU):
        return params | {"bias": of_input + of_hidden}
    # The candidate's hidden bias stays apart, inside the reset product.
    split = 2 * cell.hidden_size
    return params | {"bias": of_input.at[:split].add(of_hidden[:split]), "recurrent_bias": of_hidden[split:]}


def run(layers, params, inputs):
    """Run rnnscan on torch's inputs; returns torch's outputs, with states `(layers, N, H)`."""
    states = [state for state in ("h", "c") if state in inputs]
    carry = tuple(tuple(inputs[state][number] for state in states) for number in range(len(layers)))
    carry, y = rs.scan(rs.stack(*layers), params, carry, inputs["x"])
    return {"y": y} | {state: jnp.stack([of_layer[part] for of_layer in carry]) for part, state in enumerate(states)}


def test_outputs_and_final_states_are_torchs(recorded, case_of, assert_trees_close):
    layers, golden = recorded
    outputs = jax.jit(lambda *a: run(layers, *a))(to_params(layers, golden["weights"]), golden["inputs"])
    assert_trees_close(outputs, golden["outputs"], tolerance=1e-9)


def test_gradients_are_torchs(recorded, case_of, assert_trees_close):
    layers, golden = recorded

    def loss(params, inputs):
        outputs = run(layers, params, inputs)
        return sum((golden["loss_weights"][name] * jnp.sin(value)).sum() for name, value in outputs.items())

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    of_params, of_inputs = gradient(to_params(layers, golden["weights"]), golden["inputs"])
    expected = golden["gradients"]
    assert_trees_close(of_inputs, {name: expected[name] for name in of_inputs}, tolerance=1e-9)
    for number, of_layer in enumerate(of_params.values()):
        assert_trees_close(of_layer["kernel"], expected[f"weight_ih_l{number}"].T, tolerance=1e-9)
        assert_trees_close(of_layer["recurrent_kernel"], expected[f"weight_hh_l{number}"].T, tolerance=1e-9)
        # Torch's two biases are a sum here, so each has the gradient of it, apart from the candidate's of a GRU.
        of_hidden = of_layer["bias"]
        if "recurrent_bias" in of_layer:
            of_hidden = jnp.concatenate([of_layer["bias"][:8], of_layer["recurrent_bias"]])
        assert_trees_close(of_layer["bias"], expected[f"bias_ih_l{number}"], tolerance=1e-9)
        assert_trees_close(of_hidden, expected[f"bias_hh_l{number}"], tolerance=1e-9)


def test_the_goldens_have_biases_that_are_not_zero_and_say_which_torch_made_them():
    with np.load(GOLDENS) as file:
        assert str(file["torch_version"])[0].isdigit()
        biases = [file[key] for key in file.files if "/weights/bias" in key]
    assert len(biases) == 16
    assert all(np.all(bias != 0) for bias in biases)
