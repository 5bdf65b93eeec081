"""What does not fit is refused by name, with both shapes and the library's layout."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import interop


def tensors(**shapes):
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


TORCH = {"weight_ih_l0": (16, 3), "weight_hh_l0": (16, 4), "bias_ih_l0": (16,), "bias_hh_l0": (16,)}
TORCH_TWO = TORCH | {"weight_ih_l1": (16, 4), "weight_hh_l1": (16, 4), "bias_ih_l1": (16,), "bias_hh_l1": (16,)}
FLAX = {"ir": 3, "iz": 3, "in": 3, "hr": 4, "hz": 4, "hn": 4}
ONNX = {"W": (1, 16, 3), "R": (1, 16, 4)}


def without(shapes, name):
    return {other: shape for other, shape in shapes.items() if other != name}


def renamed(shapes, name, new):
    return without(shapes, name) | {new: shapes[name]}


def flax_gru(**changed):
    params = {name: {"kernel": np.ones((rows, 4))} for name, rows in FLAX.items()}
    for name in ("ir", "iz", "in", "hn"):
        params[name]["bias"] = np.ones(4)
    return params | changed


HAIKU_GRU = {"w_i": (3, 12), "w_h": (4, 12), "b": (12,)}


class LSTMCell(SimpleNamespace):
    """An Equinox cell has its arrays as attributes."""


FAULTS = {
    "equinox_cell": (
        lambda: interop.from_equinox({"weight_ih": np.ones((16, 3))}),
        r"from_equinox: the cell must be one of 'LSTMCell', 'GRUCell'; got 'dict'\.",
    ),
    "equinox_missing": (
        lambda: interop.from_equinox(LSTMCell(**tensors(weight_ih=(16, 3)))),
        r"from_equinox: the tensors of Equinox's LSTMCell must be .*: missing 'weight_hh'\.",
    ),
    "equinox_shape": (
        lambda: interop.from_equinox(LSTMCell(**tensors(weight_ih=(3, 16), weight_hh=(16, 4)))),
        r"'weight_ih' must be \(16, D\), which Equinox lays out as \(4H, D\), gates i f g o in rows; got \(3, 16\)\.",
    ),
    "haiku_kind": (
        lambda: interop.from_haiku({}, "VanilaRNN"),
        r"from_haiku: the cell must be one of 'LSTM', 'GRU', 'VanillaRNN'; got 'VanilaRNN'\. Did you mean 'VanillaRNN'",
    ),
    "haiku_missing": (
        lambda: interop.from_haiku({"gru": tensors(**without(HAIKU_GRU, "b"))}, "GRU"),
        r"from_haiku: the tensors of Haiku's GRU must be .*: missing 'b'\.",
    ),
    "haiku_of_another_kind": (
        lambda: interop.from_haiku({"gru": tensors(**HAIKU_GRU)}, "LSTM"),
        r"from_haiku: the tensors of Haiku's LSTM must be .*: missing 'linear/b', 'linear/w', and unknown",
    ),
    "haiku_shape": (
        lambda: interop.from_haiku({"gru": tensors(**HAIKU_GRU | {"w_h": (4, 16)})}, "GRU"),
        r"'w_h' must be .*H.*3H.*gates z r n in columns; got \(4, 16\)\.",
    ),
    "haiku_without_an_input": (
        lambda: interop.from_haiku({"lstm/linear": tensors(w=(4, 16), b=(16,))}),
        r"'linear/w' must have more rows than H=4, those of the input and then those of the state; got 4\.",
    ),
    "haiku_several_cores": (
        lambda: interop.from_haiku({"gru": tensors(**HAIKU_GRU), "gru_1": tensors(**HAIKU_GRU)}, "GRU"),
        r"from_haiku: the modules must be those of one core; got 'gru', 'gru_1'\. Pass `name`, .*name='gru'\.",
    ),
    "haiku_name": (
        lambda: interop.from_haiku({"gru": tensors(**HAIKU_GRU)}, "GRU", name="gro"),
        r"from_haiku: `name` must be .* Haiku's GRU in the parameters; got 'gro', and .* 'gru'\. Did you mean 'gru'\?",
    ),
    "torch_kind": (
        lambda: interop.from_torch(tensors(**TORCH), "lstm"),
        r"from_torch: `kind` must be one of 'LSTM', 'GRU', 'RNN'; got 'lstm'\.",
    ),
    "torch_nonlinearity": (
        lambda: interop.from_torch(tensors(**TORCH), "RNN", nonlinearity="gelu"),
        r"from_torch: `nonlinearity` must be one of 'tanh', 'relu'; got 'gelu'\.",
    ),
    "torch_missing": (
        lambda: interop.from_torch(tensors(**without(TORCH, "bias_hh_l0"))),
        r"from_torch: the tensors of torch's LSTM must be .*: missing 'bias_hh_l0'\.",
    ),
    "torch_unknown": (
        lambda: interop.from_torch(tensors(**TORCH, head=(3, 4))),
        r"from_torch: the tensors of torch's LSTM must be .*: unknown 'head'\.",
    ),
    "torch_names_of_a_module_within_another": (
        lambda: interop.from_torch({f"rnn.{name}": tensor for name, tensor in tensors(**TORCH).items()}),
        r"LSTM must be 'weight_ih_l0', 'weight_hh_l0'; got 4 tensors: missing all of them, and unknown "
        r"'rnn\.weight_ih_l0', .*'rnn\.bias_hh_l0'\. The names begin",
    ),
    "torch_misspelt": (
        lambda: interop.from_torch(tensors(**renamed(TORCH, "bias_hh_l0", "bias_hh_10"))),
        r": missing 'bias_hh_l0', and unknown 'bias_hh_10'\. Did you mean 'bias_hh_l0'\?",
    ),
    "torch_a_layer_left_out": (
        lambda: interop.from_torch(tensors(**TORCH, weight_ih_l2=(16, 4))),
        r": missing 'weight_ih_l1', 'weight_hh_l1', .*'bias_hh_l2'\.",
    ),
    "torch_a_direction_left_out": (
        lambda: interop.from_torch(tensors(**TORCH, weight_ih_l0_reverse=(16, 3))),
        r": missing 'weight_hh_l0_reverse', 'bias_ih_l0_reverse', 'bias_hh_l0_reverse'\.",
    ),
    "torch_shape": (
        lambda: interop.from_torch(tensors(**TORCH | {"weight_ih_l0": (12, 3)})),
        r"from_torch: 'weight_ih_l0' must be \(16, 3\), which torch lays out as \(4H, D\), gates i f g o in rows; got "
        r"\(12, 3\)\.",
    ),
    "torch_columns": (
        lambda: interop.from_torch(tensors(**TORCH | {"weight_hh_l0": (4, 16)})),
        r"'weight_hh_l0' must be \(64, 16\), which torch lays out as \(4H, H\), gates i f g o in rows; got \(4, 16\)\.",
    ),
    "torch_axes": (
        lambda: interop.from_torch(tensors(**TORCH | {"weight_hh_l0": (64,)})),
        r"'weight_hh_l0' must be \(4H, H\), which torch lays out as \(4H, H\), gates i f g o in rows; got \(64,\)\.",
    ),
    "torch_gru_as_lstm": (
        lambda: interop.from_torch(tensors(weight_ih_l0=(12, 3), weight_hh_l0=(12, 4))),
        r"'weight_hh_l0' must be \(16, 4\), .*gates i f g o in rows; got \(12, 4\)\.",
    ),
    "torch_second_layer": (
        lambda: interop.from_torch(tensors(**TORCH_TWO | {"weight_ih_l1": (16, 8)})),
        r"'weight_ih_l1' must be \(16, 4\), which torch lays out as \(4H, D\), .*; got \(16, 8\)\.",
    ),
    "torch_bias": (
        lambda: interop.from_torch(tensors(**TORCH | {"bias_hh_l0": (12,)})),
        r"'bias_hh_l0' must be \(16,\), which torch lays out as \(4H,\), gates i f g o in rows; got \(12,\)\.",
    ),
    "torch_projection_of_a_gru": (
        lambda: interop.from_torch(tensors(**TORCH, weight_hr_l0=(2, 4)), "GRU"),
        r"torch's GRU must be .*: unknown 'weight_hr_l0'\.",
    ),
    "torch_empty": (lambda: interop.from_torch({}), r": missing 'weight_ih_l0', 'weight_hh_l0'\."),
    "keras_kind": (
        lambda: interop.from_keras_weights([], "Dense"),
        r"`kind` must be one of 'SimpleRNN', 'LSTM', 'GRU', 'ConvLSTM1D', .*; got 'Dense'\.",
    ),
    "keras_count": (
        lambda: interop.from_keras_weights([np.ones((3, 16))]),
        r"the weights of a LSTM must be 'kernel', 'recurrent_kernel' and, with a bias, 'bias'; got 1 tensors\.",
    ),
    "keras_shape": (
        lambda: interop.from_keras_weights([np.ones((3, 12)), np.ones((4, 16))]),
        r"'kernel' must be \(D, 16\), which Keras lays out as \(D, 4H\), gates i f g o in columns; got \(3, 12\)\.",
    ),
    "keras_recurrent_shape": (
        lambda: interop.from_keras_weights([np.ones((3, 12)), np.ones((12, 4))], "GRU"),
        r"'recurrent_kernel' must be \(12, 36\), which Keras lays out as \(H, 3H\), gates z r n in columns; got "
        r"\(12, 4\)\.",
    ),
    "keras_bias": (
        lambda: interop.from_keras_weights([np.ones((3, 12)), np.ones((4, 12)), np.ones((1, 12))], "GRU"),
        r"'bias' must be \(2, 12\), which Keras lays out as \(2, 3H\), gates z r n in columns; got \(1, 12\)\.",
    ),
    "keras_two_biases_of_an_lstm": (
        lambda: interop.from_keras_weights([np.ones((3, 16)), np.ones((4, 16)), np.ones((2, 16))]),
        r"'bias' must be \(16,\), which Keras lays out as \(4H,\), gates i f g o in columns; got \(2, 16\)\.",
    ),
    "keras_window": (
        lambda: interop.from_keras_weights([np.ones((3, 2, 3, 16)), np.ones((3, 3, 4, 16))], "ConvLSTM2D"),
        r"'kernel' must be \(3, 3, D, 16\), which Keras lays out as \(X, Y, D, 4H\), .*; got \(3, 2, 3, 16\)\.",
    ),
    "keras_merge": (
        lambda: interop.from_keras_weights([], merge="mean"),
        r"`merge` must be one of 'concat', 'sum', 'ave', 'mul'; got 'mean'\.",
    ),
    "keras_halves": (
        lambda: interop.from_keras_weights([np.ones(3)] * 5, merge="sum"),
        r"two layers must have .* got 5",
    ),
    "flax_kind": (
        lambda: interop.from_flax(flax_gru(), "GRUCel"),
        r"from_flax: the cell must be one of 'LSTMCell', .*; got 'GRUCel'\. Did you mean 'GRUCell'\?",
    ),
    "flax_missing": (
        lambda: interop.from_flax(flax_gru(hn={"kernel": np.ones((4, 4))}), "GRUCell"),
        r"from_flax: the tensors of Flax's GRU must be .*: missing 'hn/bias'\.",
    ),
    "flax_unknown": (
        lambda: interop.from_flax({"params": flax_gru()}, "GRUCell"),
        r"from_flax: 'params/ir' must be a tensor of a floating dtype; got dict\.",
    ),
    "flax_shape": (
        lambda: interop.from_flax(flax_gru(hz={"kernel": np.ones((5, 4))}), "GRUCell"),
        r"'hz/kernel' must be \(4, 4\), which Flax lays out as \(H, H\), one dense layer .*; got \(5, 4",
    ),
    "onnx_direction": (
        lambda: interop.from_onnx(tensors(**ONNX), direction="backward"),
        r"`direction` must be one of 'forward', 'reverse', 'bidirectional'; got 'backward'\.",
    ),
    "onnx_directions": (
        lambda: interop.from_onnx(tensors(**ONNX), direction="bidirectional"),
        r"'R' must be \(2, 4H, H\), which ONNX lays out as \(2, 4H, H\), gates i o f g in rows; got \(1, 16, 4\)\.",
    ),
    "onnx_unknown": (
        lambda: interop.from_onnx(tensors(W=(1, 12, 3), R=(1, 12, 4), P=(1, 12)), "GRU"),
        r"the tensors of ONNX's GRU must be 'W', 'R', and may have 'B'; got 'W', 'R', 'P': unknown 'P'\.",
    ),
    "onnx_bias": (
        lambda: interop.from_onnx(tensors(**ONNX, B=(1, 16))),
        r"'B' must be \(1, 32\), which ONNX lays out as \(1, 8H\), gates i o f g in rows; got \(1, 16\)\.",
    ),
    "onnx_activation": (
        lambda: interop.from_onnx(tensors(**ONNX), activations=["Sigmoid", "Affine", "Affine"]),
        r"must be one of 'Elu', .*; got ONNX's 'Affine'",
    ),
    "onnx_activations": (
        lambda: interop.from_onnx(tensors(**ONNX), activations=["Sigmoid", "Tanh"]),
        r"`activations` must be 3 names for each of 1 directions; got \['Sigmoid', 'Tanh'\]\.",
    ),
    "onnx_two_activations": (
        lambda: interop.from_onnx(tensors(**ONNX), activations=["Sigmoid", "Tanh", "Relu"]),
        r"the second and the third activation, .* must be the same .* got",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("convert", "message"), FAULTS.values(), ids=FAULTS)
def test_tensors_that_do_not_fit_are_refused_by_name(convert, message):
    with pytest.raises((ValueError, TypeError), match=message):
        convert()


@pytest.mark.parametrize("tensor", [np.zeros((16, 3), int), None, "weights"], ids=["ints", "None", "str"])
def test_what_is_no_floating_tensor_is_refused(tensor):
    with pytest.raises(TypeError, match=r"from_torch: 'weight_ih_l0' must be a tensor of a floating dtype; got"):
        interop.from_torch(tensors(**TORCH) | {"weight_ih_l0": tensor})


@pytest.mark.bad_input
def test_what_is_no_dictionary_is_refused():
    with pytest.raises(TypeError, match=r"from_torch: the tensors must be a dictionary by name; got list\."):
        interop.from_torch([1, 2])


LSTM = rs.cells.LSTM(4)
WRITERS = {
    "torch": interop.to_torch,
    "cudnn": interop.to_cudnn,
    "keras": interop.to_keras,
    "flax": interop.to_flax,
    "equinox": interop.to_equinox,
    "haiku": interop.to_haiku,
    "nnx": interop.to_nnx,
    "caffe2": interop.to_caffe2,
    "dl4j": interop.to_dl4j,
    "onnx": interop.to_onnx,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize(
    "net",
    [
        rs.layer(rs.cells.LSTM(4, coupled_gates=True)),
        rs.layer(rs.cells.LSTM(4, cell_clip=1.0)),
        rs.layer(rs.cells.IndRNN(4)),
        rs.layer(rs.dropout(LSTM, rate=0.5)),
        rs.layer(rs.stack(LSTM, LSTM)),
        rs.bidirectional(LSTM, merge=lambda forward, backward: forward),
    ],
    ids=["coupled_gates", "cell_clip", "indrnn", "dropout", "stack", "merge"],
)
def test_nets_that_no_library_has_are_refused(write, net, random_params):
    with pytest.raises(ValueError, match=r"to_\w+: "):
        write(net, random_params(net))


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_parameters_of_another_cell_are_refused(write, random_params):
    params = random_params(rs.layer(rs.cells.LSTM(5)))
    with pytest.raises(ValueError, match=r"LSTM: the parameters of 4 units must be 'kernel' \(D, 16\)"):
        write(rs.layer(LSTM), params)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_cell_is_no_net(write, random_params):
    with pytest.raises(TypeError, match=r"the net must be a layer, .*; got LSTM\. Make a net .* layer"):
        write(LSTM, random_params(LSTM))


@pytest.mark.parametrize("name", ["keras", "flax", "nnx", "equinox", "haiku", "caffe2", "dl4j", "onnx"])
def test_where_a_library_has_one_layer_a_chain_is_refused(name, random_params):
    net = rs.chain(rs.layer(LSTM), rs.layer(LSTM))
    with pytest.raises(ValueError, match=r"has one layer at a time; got a chain of 2\. .*params\['net_0'\]"):
        WRITERS[name](net, random_params(net))


@pytest.mark.parametrize(
    "net",
    [
        rs.chain(rs.layer(LSTM), rs.layer(rs.cells.GRU(4))),
        rs.chain(rs.layer(LSTM), rs.layer(rs.cells.LSTM(5))),
        rs.chain(rs.layer(LSTM), rs.bidirectional(LSTM)),
        rs.bidirectional(LSTM, rs.cells.LSTM(4, use_bias=False)),
    ],
    ids=["kinds", "sizes", "directions", "biases"],
)
def test_torch_has_layers_of_one_form(net, random_params):
    with pytest.raises(ValueError, match=r"to_torch: all cells of torch must .* one kind, size and form"):
        interop.to_torch(net, random_params(net))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (rs.layer(LSTM, reverse=True), r"to_torch: torch has no layer that runs .* in reverse.*; got Layer\("),
        (rs.bidirectional(LSTM, merge="sum"), r"to_torch: torch merges two directions by 'concat'; got merge='sum'\."),
        (rs.layer(rs.cells.GRU(4, reset_after=False)), r"to_torch: torch has no GRU with reset_after=False; got GRU\("),
        (rs.layer(rs.cells.LSTM(4, peepholes=True)), r"to_torch: torch has no LSTM with peepholes=True; got LSTM\("),
        (rs.layer(rs.cells.RNN(4, activation="elu")), r"to_torch: torch's RNN has one of 'tanh', 'relu' .*got 'elu'\."),
    ],
    ids=["reverse", "merge", "reset_before", "peepholes", "activation"],
)
def test_nets_that_torch_has_not_are_refused(net, message, random_params):
    with pytest.raises(ValueError, match=message):
        interop.to_torch(net, random_params(net))


def test_an_activation_that_onnx_has_not_is_refused(random_params):
    net = rs.layer(rs.cells.RNN(4, activation="gelu"))
    with pytest.raises(ValueError, match=r"to_onnx: ONNX has no such activation; got 'gelu' in RNN\("):
        interop.to_onnx(net, random_params(net))


def test_a_function_that_is_a_known_activation_is_as_good_as_its_name(random_params):
    net = rs.layer(rs.cells.LSTM(4, gate_activation=jax.nn.sigmoid))
    params = random_params(net)
    assert list(interop.to_torch(net, params)) == list(TORCH)


def test_flax_nnx_has_no_mgu(random_params):
    net = rs.layer(rs.cells.MGU(4))
    with pytest.raises(ValueError, match=r"to_nnx: flax\.nnx has cells of the kinds 'LSTM', 'GRU', 'RNN'; got MGU\("):
        interop.to_nnx(net, random_params(net))


def test_states_of_another_number_of_cells_are_refused():
    with pytest.raises(
        ValueError, match=r"states must be \(2, N, H\), torch's \(layers \* directions, N, H\).*\(1, 2, 4\)"
    ):
        interop.carry_from_torch(rs.bidirectional(rs.cells.GRU(4)), np.zeros((1, 2, 4)))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (rs.layer(rs.cells.GRU(4)), r"Haiku's GRU resets the state before the product; got GRU\(.*reset_after=False"),
        (rs.layer(rs.cells.RNN(4)), r"Haiku's VanillaRNN has the activation relu; got RNN\(.*activation=\"relu\""),
        (rs.layer(rs.cells.LSTM(4, activation="relu")), r"Haiku has no LSTM with activation='relu'"),
    ],
    ids=["reset_after", "tanh", "activation"],
)
def test_nets_that_haiku_has_not_are_refused(net, message, random_params):
    with pytest.raises(ValueError, match=message):
        interop.to_haiku(net, random_params(net))


def test_nets_that_equinox_has_not_are_refused(random_params):
    for cell in (rs.cells.RNN(4), rs.cells.GRU(4, reset_after=False)):
        with pytest.raises(ValueError, match=r"to_equinox: Equinox has "):
            interop.to_equinox(rs.layer(cell), random_params(rs.layer(cell)))


def test_haikus_parameters_are_a_dictionary():
    with pytest.raises(TypeError, match=r"from_haiku: the parameters must be a dictionary by module; got list"):
        interop.from_haiku([np.ones((7, 16))])
