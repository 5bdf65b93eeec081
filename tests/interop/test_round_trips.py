"""Parameters that go to another library's layout and come back are the same, bit for bit, for every library."""

from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import interop


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


LSTM, GRU, RNN, MGU = rs.cells.LSTM(4), rs.cells.GRU(4), rs.cells.RNN(4), rs.cells.MGU(4)
GRU_BEFORE = rs.cells.GRU(4, reset_after=False)
RELU = rs.cells.RNN(4, activation="relu")
PEEPHOLES = rs.cells.LSTM(4, peepholes=True)
PROJECTION = rs.cells.LSTM(4, proj_size=2)
HARD = rs.cells.LSTM(4, peepholes=True, activation="softsign", gate_activation="hard_sigmoid")


def no_bias(kind, **options):
    return kind(4, use_bias=False, **options)


def two(cell):
    return rs.chain(rs.bidirectional(cell), rs.bidirectional(cell))


def through_torch(net, params):
    cell = getattr(net, "nets", (net,))[0]
    cell = getattr(cell, "forward", None) or cell.cell
    options = {"nonlinearity": cell.activation} if isinstance(cell, rs.cells.RNN) else {}
    return interop.from_torch(interop.to_torch(net, params), type(cell).__name__, **options)


def through_cudnn(net, params):
    nets = getattr(net, "nets", (net,))
    bidirectional = hasattr(nets[0], "forward")
    return interop.from_cudnn(interop.to_cudnn(net, params), 3, 4, len(nets), bidirectional)


def through_keras(net, params, kind, merge=None, reverse=False, **options):
    return interop.from_keras_weights(interop.to_keras(net, params), kind, merge=merge, reverse=reverse, **options)


def through_flax(net, params, kind, **options):
    return interop.from_flax(interop.to_flax(net, params), kind, **options)


def through_nnx(net, params, kind):
    nnx = pytest.importorskip("flax.nnx")
    cell = getattr(nnx, kind)(3, 4, rngs=nnx.Rngs(0))
    nnx.update(cell, interop.to_nnx(net, params, kind))
    return interop.from_nnx(cell)


class LSTMCell(SimpleNamespace):
    """An Equinox cell has its arrays as attributes."""


class GRUCell(SimpleNamespace):
    pass


def through_equinox(net, params):
    cell = {"LSTM": LSTMCell, "GRU": GRUCell}[type(net.cell).__name__]
    return interop.from_equinox(cell(**interop.to_equinox(net, params)))


def through_haiku(net, params, kind):
    return interop.from_haiku(interop.to_haiku(net, params), kind)


def through_caffe2(net, params):
    return interop.from_caffe2(interop.to_caffe2(net, params))


def through_blobs(net, params):
    return interop.from_caffe2(interop.to_caffe2(net, params, fused=True, scope="lstm"))


def through_caffe2_attention(decoder, params, attention_type):
    blobs = interop.to_caffe2_attention(decoder, params, scope="decoder")
    return interop.from_caffe2_attention(blobs, attention_type)


def through_dl4j(net, params, merge=None, kind=None):
    cell = getattr(net, "forward", None) or net.cell
    options = {name: getattr(cell, name) for name in ("activation", "gate_activation")}
    return interop.from_dl4j(interop.to_dl4j(net, params, kind=kind), merge=merge, **options)


def through_onnx(net, params):
    attributes = interop.onnx_attributes(net)
    assert attributes.pop("hidden_size") == 4
    cell = getattr(net, "forward", None) or net.cell
    return interop.from_onnx(interop.to_onnx(net, params), type(cell).__name__, **attributes)


CASES = {
    "torch_lstm": (rs.layer(LSTM), through_torch),
    "torch_lstm_two": (two(LSTM), through_torch),
    "torch_lstm_projection": (two(PROJECTION), through_torch),
    "torch_lstm_no_bias": (rs.layer(no_bias(rs.cells.LSTM)), through_torch),
    "torch_gru_two": (two(GRU), through_torch),
    "torch_gru_no_bias": (rs.layer(no_bias(rs.cells.GRU)), through_torch),
    "torch_rnn": (rs.chain(rs.layer(RNN), rs.layer(RNN), rs.layer(RNN)), through_torch),
    "torch_rnn_relu": (rs.bidirectional(RELU), through_torch),
    "cudnn_lstm": (rs.layer(LSTM), through_cudnn),
    "cudnn_lstm_two": (two(LSTM), through_cudnn),
    "keras_lstm": (rs.layer(LSTM), partial(through_keras, kind="LSTM")),
    "keras_lstm_sum": (rs.bidirectional(LSTM, merge="sum"), partial(through_keras, kind="LSTM", merge="sum")),
    "keras_lstm_mean": (rs.bidirectional(LSTM, merge="mean"), partial(through_keras, kind="LSTM", merge="ave")),
    "keras_lstm_reverse": (rs.layer(LSTM, reverse=True), partial(through_keras, kind="LSTM", reverse=True)),
    "keras_gru": (rs.bidirectional(GRU), partial(through_keras, kind="GRU", merge="concat")),
    "keras_gru_before": (rs.layer(GRU_BEFORE), partial(through_keras, kind="GRU")),
    "keras_gru_no_bias": (rs.layer(no_bias(rs.cells.GRU)), partial(through_keras, kind="GRU")),
    "keras_gru_before_no_bias": (
        rs.layer(no_bias(rs.cells.GRU, reset_after=False)),
        partial(through_keras, kind="GRU", reset_after=False),
    ),
    "keras_rnn": (rs.layer(RELU), partial(through_keras, kind="SimpleRNN", activation="relu")),
    "keras_conv_lstm": (rs.layer(rs.cells.ConvLSTM(4, (3, 2))), partial(through_keras, kind="ConvLSTM2D")),
    "flax_lstm": (rs.layer(LSTM), partial(through_flax, kind="LSTMCell")),
    "flax_lstm_optimized": (rs.layer(LSTM), partial(through_flax, kind="OptimizedLSTMCell")),
    "flax_gru": (rs.layer(GRU), partial(through_flax, kind="GRUCell")),
    "flax_rnn": (rs.layer(RELU), partial(through_flax, kind="SimpleCell", activation="relu")),
    "flax_mgu": (rs.layer(MGU), partial(through_flax, kind="MGUCell")),
    "flax_mgu_plain": (rs.layer(rs.cells.MGU(4, reset_gate=False)), partial(through_flax, kind="MGUCell")),
    "nnx_lstm": (rs.layer(LSTM), partial(through_nnx, kind="LSTMCell")),
    "nnx_lstm_optimized": (rs.layer(LSTM), partial(through_nnx, kind="OptimizedLSTMCell")),
    "nnx_rnn": (rs.layer(RNN), partial(through_nnx, kind="SimpleCell")),
    "equinox_lstm": (rs.layer(LSTM), through_equinox),
    "equinox_lstm_no_bias": (rs.layer(no_bias(rs.cells.LSTM)), through_equinox),
    "equinox_gru": (rs.layer(GRU), through_equinox),
    "equinox_gru_no_bias": (rs.layer(no_bias(rs.cells.GRU)), through_equinox),
    "haiku_gru": (rs.layer(GRU_BEFORE), partial(through_haiku, kind="GRU")),
    "haiku_rnn": (rs.layer(RELU), partial(through_haiku, kind="VanillaRNN")),
    "caffe2_lstm": (rs.layer(LSTM), through_caffe2),
    "caffe2_blobs": (rs.layer(LSTM), through_blobs),
    "caffe2_layer_norm": (rs.layer(rs.cells.LayerNormLSTM(4, epsilon=1e-4)), through_blobs),
    "caffe2_mi": (rs.layer(rs.cells.MILSTM(4)), through_caffe2),
    "caffe2_layer_norm_mi": (rs.layer(rs.cells.LayerNormMILSTM(4, epsilon=1e-4)), through_blobs),
    "caffe2_regular": (
        rs.attention.decoder(LSTM, rs.attention.Additive(6, 6)),
        partial(through_caffe2_attention, attention_type="Regular"),
    ),
    "caffe2_regular_keys": (
        rs.attention.decoder(LSTM, rs.attention.Additive(6, 6, project_keys=False)),
        partial(through_caffe2_attention, attention_type="Regular"),
    ),
    "caffe2_recurrent": (
        rs.attention.decoder(rs.cells.LayerNormLSTM(4, epsilon=1e-4), rs.attention.RecurrentAdditive(6, 6)),
        partial(through_caffe2_attention, attention_type="Recurrent"),
    ),
    "caffe2_dot": (
        rs.attention.decoder(LSTM, rs.attention.Dot(4)),
        partial(through_caffe2_attention, attention_type="Dot"),
    ),
    "caffe2_dot_query": (
        rs.attention.decoder(LSTM, rs.attention.Dot(6, project_query=True)),
        partial(through_caffe2_attention, attention_type="Dot"),
    ),
    "caffe2_coverage": (
        rs.attention.decoder(LSTM, rs.attention.Coverage(6, 6)),
        partial(through_caffe2_attention, attention_type="SoftCoverage"),
    ),
    "dl4j_both": (rs.bidirectional(LSTM), through_dl4j),
    "dl4j_both_mean": (rs.bidirectional(HARD, merge="mean"), partial(through_dl4j, merge="mean")),
    "dl4j_both_product": (rs.bidirectional(LSTM, merge="product"), partial(through_dl4j, merge="product")),
    "dl4j_both_graves": (
        rs.bidirectional(PEEPHOLES, merge="sum"),
        partial(through_dl4j, kind="GravesBidirectionalLSTM"),
    ),
    "dl4j_lstm": (rs.layer(LSTM), through_dl4j),
    "dl4j_graves": (rs.layer(HARD), through_dl4j),
    "onnx_lstm": (rs.layer(LSTM), through_onnx),
    "onnx_lstm_peepholes": (rs.bidirectional(PEEPHOLES), through_onnx),
    "onnx_lstm_hard": (rs.layer(HARD, reverse=True), through_onnx),
    "onnx_lstm_no_bias": (rs.layer(no_bias(rs.cells.LSTM)), through_onnx),
    "onnx_gru": (rs.bidirectional(GRU), through_onnx),
    "onnx_gru_before": (rs.layer(GRU_BEFORE, reverse=True), through_onnx),
    "onnx_rnn": (rs.layer(RELU), through_onnx),
}


@pytest.mark.parametrize(("net", "through"), CASES.values(), ids=CASES)
def test_parameters_come_back_bit_for_bit_and_so_does_the_net(net, through, random_params, assert_equal):
    params = random_params(net)
    back, back_params = through(net, params)
    assert back == net
    assert_equal(back_params, params)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_dtype_of_16_bits_stays_what_it_is(dtype, random_params, assert_equal):
    net = two(LSTM)
    params = random_params(net, dtype=dtype)
    back, back_params = through_torch(net, params)
    assert_equal(back_params, params)
    assert back.nets[0].forward == rs.cells.LSTM(4, param_dtype=dtype)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("through", [through_torch, through_cudnn, through_onnx, through_caffe2, through_dl4j])
def test_float64_stays_float64(through, random_params, assert_equal):
    net = rs.layer(LSTM)
    params = random_params(net)
    assert params["kernel"].dtype == jnp.float64
    assert_equal(through(net, params)[1], params)


def test_haikus_lstm_comes_back_but_for_rounding_of_the_forget_gates_bias(random_params, assert_equal):
    net = rs.layer(LSTM)
    params = random_params(net)
    back, back_params = through_haiku(net, params, "LSTM")
    assert back == net
    np.testing.assert_allclose(back_params["bias"], params["bias"], rtol=0, atol=2e-7)
    forget = jnp.arange(16) // 4 == 1
    assert_equal(back_params | {"bias": jnp.where(forget, params["bias"], back_params["bias"])}, params)


WITHOUT_BIAS = rs.layer(no_bias(rs.cells.LSTM))


@pytest.mark.parametrize(
    "through", [through_cudnn, through_caffe2, through_blobs, through_dl4j, partial(through_flax, kind="LSTMCell")]
)
def test_where_a_library_always_has_biases_they_are_zero(through, random_params, assert_equal):
    params = random_params(WITHOUT_BIAS)
    back, back_params = through(WITHOUT_BIAS, params)
    assert back == rs.layer(LSTM)
    assert_equal(back_params, params | {"bias": jnp.zeros(16)})


def test_nnx_gru_cells_have_no_recurrent_bias(random_params, assert_equal):
    net = rs.layer(GRU)
    params = random_params(net)
    with pytest.raises(
        ValueError, match=r"to_nnx: `recurrent_bias` must be zero, because flax\.nnx's GRUCell has none"
    ):
        interop.to_nnx(net, params)
    params = params | {"recurrent_bias": jnp.zeros(4)}
    back, back_params = through_nnx(net, params, "GRUCell")
    assert back == net
    assert_equal(back_params, params)


def summed(state_dict, kind):
    """Torch's biases as the sums that a net is made of: a GRU's candidate has two."""
    sums = {}
    for name, array in state_dict.items():
        if name.startswith("bias_ih"):
            other = state_dict[name.replace("ih", "hh")]
            sums[name] = array + other
            if kind == "GRU":
                split = 2 * array.size // 3
                sums[name] = np.concatenate([(array + other)[:split], array[split:], other[split:]])
        elif not name.startswith("bias"):
            sums[name] = array
    return sums


@pytest.mark.parametrize(("kind", "blocks"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_torchs_own_weights_come_back_with_the_same_sums_of_biases(kind, blocks, assert_equal):
    random = np.random.default_rng(0)
    shapes = {"weight_ih": (blocks * 4, 3), "weight_hh": (blocks * 4, 4)}
    shapes |= {"bias_ih": (blocks * 4,), "bias_hh": (blocks * 4,)}
    state_dict = {
        f"{name}_l0{direction}": random.normal(size=shape).astype(np.float32)
        for direction in ("", "_reverse")
        for name, shape in shapes.items()
    }
    back = interop.to_torch(*interop.from_torch(state_dict, kind))
    assert list(back) == list(state_dict)
    assert_equal(summed(back, kind), summed(state_dict, kind))
    assert any(np.any(back[name] != state_dict[name]) for name in back)
