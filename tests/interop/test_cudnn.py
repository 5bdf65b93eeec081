"""Nets of cuDNN's flat weight compute what JAX's reference of it does; `cudnn.lstm` refuses what cuDNN fails at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import rnn

import rnnscan as rs
from drawn import normal
from rnnscan import interop
from tiers import variants


TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 3, 3, 4
FORMS = {
    "one": (1, False),
    "three": (3, False),
    "two_directions": (1, True),
    "two_of_two_directions": (2, True),
}


def arguments(num_layers, bidirectional, *, dtype=None):
    random = np.random.default_rng(0)
    cells = num_layers * (2 if bidirectional else 1)
    size = rnn.get_num_params_in_lstm(INPUT_SIZE, HIDDEN_SIZE, num_layers, bidirectional)
    shapes = [(BATCH, TIME, INPUT_SIZE), (cells, BATCH, HIDDEN_SIZE), (cells, BATCH, HIDDEN_SIZE), (size,)]
    return [normal(random, shape, dtype, 0.5) for shape in shapes]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("lengths", variants({"whole": [5, 5, 5], "padded": [5, 2, 1]}, ["padded"]))
@pytest.mark.parametrize(("num_layers", "bidirectional"), variants(FORMS, ["three", "two_of_two_directions"]))
def test_the_net_computes_what_jaxs_reference_does(num_layers, bidirectional, lengths, assert_trees_close):
    x, h_0, c_0, weights = arguments(num_layers, bidirectional)
    seq_lengths = jnp.asarray(lengths, jnp.int32)
    sizes = INPUT_SIZE, HIDDEN_SIZE, num_layers
    y, h_n, c_n = rnn.lstm_ref(
        x,
        h_0,
        c_0,
        *rnn.unpack_lstm_weights(weights, *sizes, bidirectional),
        seq_lengths,
        *sizes,
        0.0,
        bidirectional,
    )
    net, params = interop.from_cudnn(weights, *sizes, bidirectional)
    carry = interop.carry_from_torch(net, (h_0, c_0))
    run = jax.jit(lambda params, xs, carry, lengths: net(params, xs, carry=carry, seq_lengths=lengths))
    carry, ys = run(params, x.swapaxes(0, 1), carry, seq_lengths)
    actual = ys.swapaxes(0, 1), *interop.carry_to_torch(net, carry)
    assert_trees_close(actual, (y, h_n, c_n), tolerance=1e-9)


@pytest.mark.parametrize(("num_layers", "bidirectional"), FORMS.values(), ids=FORMS)
def test_cudnns_own_weight_comes_back_with_the_same_sums_of_biases(num_layers, bidirectional, assert_equal):
    *_, weights = arguments(num_layers, bidirectional)
    sizes = INPUT_SIZE, HIDDEN_SIZE, num_layers, bidirectional
    back = interop.to_cudnn(*interop.from_cudnn(weights, *sizes))

    def with_sums(flat):
        kernels, recurrent_kernels, of_input, of_hidden = rnn.unpack_lstm_weights(flat, *sizes)
        return kernels, recurrent_kernels, {part: of_input[part] + of_hidden[part] for part in of_input}

    assert_equal(with_sums(back), with_sums(weights))
    assert np.any(back != weights)


def test_a_weight_of_another_size_is_refused():
    with pytest.raises(
        ValueError, match=r"from_cudnn: the weight must be \(144,\), which cuDNN lays out as .*gates i f g"
    ):
        interop.from_cudnn(np.zeros(143), 3, 4, 1, False)
    with pytest.raises(TypeError, match=r"from_cudnn: the weight must be a tensor of a floating dtype; got .*int"):
        interop.from_cudnn(np.zeros(144, int), 3, 4, 1, False)


def call(**changed):
    """`cudnn.lstm` of two directions, with some arguments changed."""
    x, h_0, c_0, weights = arguments(1, True, dtype=jnp.float32)
    given = {
        "x": x,
        "h_0": h_0,
        "c_0": c_0,
        "weights": weights,
        "seq_lengths": jnp.array([5, 2, 1], jnp.int32),
        "input_size": INPUT_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "num_layers": 1,
        "dropout": 0.0,
        "bidirectional": True,
    }
    return interop.cudnn.lstm(**(given | changed))


ON_GPU = jax.default_backend() == "gpu"


@pytest.mark.skipif(ON_GPU, reason="there is a GPU")
def test_without_a_gpu_there_is_an_error_that_says_what_to_run():
    with pytest.raises(RuntimeError, match=r"cuDNN runs on a GPU, and JAX's backend is 'cpu'\. .*from_cudnn\("):
        call()


@pytest.mark.skipif(not ON_GPU, reason="there is no GPU")
def test_on_a_gpu_it_is_the_net():
    x, h_0, c_0, weights = arguments(1, True, dtype=jnp.float32)
    lengths = jnp.array([5, 2, 1], jnp.int32)
    y, h_n, c_n = call(precision="highest")
    net, params = interop.from_cudnn(weights, INPUT_SIZE, HIDDEN_SIZE, 1, True)
    carry, ys = net(params, x.swapaxes(0, 1), carry=interop.carry_from_torch(net, (h_0, c_0)), seq_lengths=lengths)
    np.testing.assert_allclose(y, ys.swapaxes(0, 1), atol=1e-3)
    for actual, expected in zip((h_n, c_n), interop.carry_to_torch(net, carry), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-3)


def test_where_there_is_a_gpu_jaxs_lstm_is_given_the_arguments_in_its_order(monkeypatch):
    def reference(x, h_0, c_0, weights, seq_lengths, *sizes_and_options):
        *sizes, dropout, bidirectional, precision = sizes_and_options
        assert precision == "highest"
        tensors = rnn.unpack_lstm_weights(weights, *sizes, bidirectional)
        return rnn.lstm_ref(x, h_0, c_0, *tensors, seq_lengths, *sizes, dropout, bidirectional)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(rnn, "lstm", reference)
    x, h_0, c_0, weights = arguments(1, True, dtype=jnp.float32)
    y, *_ = call(precision="highest")
    net, params = interop.from_cudnn(weights, INPUT_SIZE, HIDDEN_SIZE, 1, True)
    carry = interop.carry_from_torch(net, (h_0, c_0))
    _, ys = net(params, x.swapaxes(0, 1), carry=carry, seq_lengths=jnp.array([5, 2, 1]))
    np.testing.assert_allclose(y, ys.swapaxes(0, 1), atol=1e-6)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seq_lengths": np.array([5, 0, 1], np.int32)}, r"`seq_lengths` must be at least 1 .*; got \[5, 0, 1\]\."),
        ({"seq_lengths": np.array([6, 1, 1], np.int32)}, r"at most the 5 steps of x; got \[6, 1, 1\]\."),
        ({"seq_lengths": np.array([5, 1], np.int32)}, r"`seq_lengths` must be \(3,\); got int32\[2\]\."),
        ({"x": np.zeros((3, 5, 4), np.float32)}, r"`x` must be \(N, T, 3\), batch-major; got float32\[3,5,4\]\."),
        ({"x": np.zeros((3, 65536, 3), np.float32)}, r"cuDNN fails above 65535 steps; got 65536\."),
        ({"h_0": np.zeros((1, 3, 4), np.float32)}, r"`h_0` must be \(2, 3, 4\), .*; got float32\[1,3,4\]\."),
        ({"c_0": np.zeros((2, 3, 5), np.float32)}, r"`c_0` must be \(2, 3, 4\), .*; got float32\[2,3,5\]\."),
        ({"num_layers": 2}, r"cudnn\.lstm: the weight must be \(\d+,\), .*num_layers=2, bidirectional=True; got"),
    ],
)
def test_what_cudnn_fails_at_is_refused_before(changed, message):
    with pytest.raises(ValueError, match=message):
        call(**{name: jnp.asarray(value) if hasattr(value, "shape") else value for name, value in changed.items()})


@pytest.mark.bad_input
def test_dtypes_that_cudnn_has_not_are_refused():
    with pytest.raises(TypeError, match=r"cudnn\.lstm: `x` must be of float32; got bfloat16\[3,5,3\]\."):
        call(x=jnp.zeros((3, 5, 3), jnp.bfloat16))
    with pytest.raises(TypeError, match=r"cudnn\.lstm: `seq_lengths` must be of int32; got float32\[3\]\."):
        call(seq_lengths=jnp.ones(3))


@pytest.mark.skipif(ON_GPU, reason="there is a GPU")
def test_lengths_that_are_traced_are_let_pass():
    with pytest.raises(RuntimeError, match="cuDNN runs on a GPU"):
        jax.jit(lambda lengths: call(seq_lengths=lengths))(jnp.array([5, 0, 1], jnp.int32))


def test_cells_that_cudnn_has_not_are_refused(random_params):
    for cell, message in (
        (rs.cells.GRU(4), r"to_cudnn: cuDNN has cells of the kinds 'LSTM'; got GRU\(hidden_size=4\)\."),
        (rs.cells.LSTM(4, peepholes=True), r"to_cudnn: cuDNN has no LSTM with peepholes=True; got LSTM\("),
        (rs.cells.LSTM(4, activation="relu"), r"to_cudnn: cuDNN has no LSTM with activation='relu'; got LSTM\("),
    ):
        net = rs.layer(cell)
        with pytest.raises(ValueError, match=message):
            interop.to_cudnn(net, random_params(net))
