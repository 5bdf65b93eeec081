"""Caffe2's blobs: nets of them compute what loops straight from its equations do; parts, scopes and shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import interop


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, D, H, L = 5, 2, 3, 4, 6
GATES = ("input_gate", "forget_gate", "output_gate", "cell")


@pytest.fixture
def random():
    generator = np.random.default_rng(0)
    return lambda *shape: 0.5 * generator.normal(size=shape)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def lstm_unit(z, c, forget_bias):
    """Caffe2's LSTMUnit: preactivations of i, f, o, g, and the forget bias inside."""
    i, f, o, g = z[:, :H], z[:, H : 2 * H] + forget_bias, z[:, 2 * H : 3 * H], z[:, 3 * H :]
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def preactivation(blobs, x, seen):
    """What a cell hands to LSTMUnit; `seen` is h, or h and the context."""
    u = x @ blobs["i2h_w"].T + blobs["i2h_b"]
    if "prev_t_w" in blobs:
        p = seen @ blobs["prev_t_w"].T + blobs["prev_t_b"]
        z = (blobs["alpha"] * u + blobs["beta1"]) * p + (blobs["beta2"] * u + blobs["b"])
    else:
        z = u + seen @ blobs["gates_t_w"].T + blobs["gates_t_b"]
    if "gates_t_norm_scale" in blobs:
        mean, variance = z.mean(-1, keepdims=True), (z**2).mean(-1, keepdims=True) - z.mean(-1, keepdims=True) ** 2
        z = blobs["gates_t_norm_scale"] * (z - mean) / np.sqrt(variance + 1e-4) + blobs["gates_t_norm_bias"]
    return z


def cell_blobs(random, kind, seen=H):
    recurrent = "prev_t" if "MI" in kind else "gates_t"
    blobs = {"i2h_w": random(4 * H, D), "i2h_b": random(4 * H)}
    blobs |= {f"{recurrent}_w": random(4 * H, seen), f"{recurrent}_b": random(4 * H)}
    vectors = ("alpha", "beta1", "beta2", "b") if "MI" in kind else ()
    vectors += ("gates_t_norm_scale", "gates_t_norm_bias") if "Norm" in kind else ()
    return blobs | {name: random(4 * H) for name in vectors}


def loop(blobs, xs, h, c, forget_bias):
    ys = []
    for x in xs:
        h, c = lstm_unit(preactivation(blobs, x, h), c, forget_bias)
        ys.append(h)
    return (h, c), np.stack(ys)


@pytest.mark.parametrize("kind", ["LSTM", "LayerNormLSTM", "MILSTM", "LayerNormMILSTM"])
def test_a_net_of_blobs_computes_what_caffe2_does(kind, random, assert_trees_close):
    blobs = cell_blobs(random, kind)
    xs, h, c = random(TIME, BATCH, D), random(BATCH, H), random(BATCH, H)
    net, params = interop.from_caffe2({f"model/{kind}/{name}": blob for name, blob in blobs.items()}, forget_bias=1.5)
    assert type(net.cell).__name__ == kind
    actual = jax.jit(net)(params, jnp.asarray(xs), carry=(jnp.asarray(h), jnp.asarray(c)))
    assert_trees_close(actual, loop(blobs, xs, h, c, 1.5), tolerance=1e-9)
    # What goes back computes the same in Caffe2, without a forget bias.
    back = interop.to_caffe2(net, params, fused=True)
    assert {name: blob.shape for name, blob in back.items()} == {name: blob.shape for name, blob in blobs.items()}
    assert_trees_close(loop(back, xs, h, c, 0.0), loop(blobs, xs, h, c, 1.5), tolerance=1e-9)


def attention_blobs(random, attention_type, size, *, supplied=False):
    blobs = {}
    if attention_type != "Dot" or size != H:
        blobs |= {"weighted_decoder_hidden_state_w": random(size, H), "weighted_decoder_hidden_state_b": random(size)}
    if attention_type != "Dot":
        blobs |= {"attention_v": random(1, size), "attention_zeros": np.zeros(1)}
        if not supplied:
            blobs |= {"weighted_encoder_outputs_w": random(size, size), "weighted_encoder_outputs_b": random(size)}
    beside = {"Recurrent": "weighted_prev_attention_context", "SoftCoverage": "coverage_weights"}.get(attention_type)
    if beside:
        blobs |= {f"{beside}_w": random(size, size), f"{beside}_b": random(size)}
    return blobs


def attention_loop(cell, blobs, attention_type, xs, encoder, lengths, forget_bias, keys=None):
    """Caffe2's AttentionCell: the decoder's step on h and the context, then attention with the new h."""

    def fc(name, x):
        return x @ blobs[f"{name}_w"].T + blobs[f"{name}_b"]

    batch, size = encoder.shape[1:]
    h, c, context, coverage = np.zeros((batch, H)), np.zeros((batch, H)), np.zeros((batch, size)), np.zeros((L, batch))
    padded = np.arange(L)[:, None] >= lengths
    if attention_type != "Dot" and keys is None:
        keys = fc("weighted_encoder_outputs", encoder)
    ys, all_weights = [], []
    for x in xs:
        h, c = lstm_unit(preactivation(cell, x, np.concatenate([h, context], -1)), c, forget_bias)
        query = fc("weighted_decoder_hidden_state", h) if "weighted_decoder_hidden_state_w" in blobs else h
        if attention_type == "Dot":
            scores = (encoder * query).sum(-1)
        else:
            match = keys + query
            if attention_type == "Recurrent":
                match = match + fc("weighted_prev_attention_context", context)
            if attention_type == "SoftCoverage":
                match = match + coverage[..., None] * fc("coverage_weights", encoder)
            scores = np.tanh(match) @ blobs["attention_v"][0]
        scores = np.where(padded, -np.inf, scores)
        weights = np.exp(scores - scores.max(0))
        weights /= weights.sum(0)
        context, coverage = (weights[..., None] * encoder).sum(0), coverage + weights
        ys.append(np.concatenate([h, context], -1))
        all_weights.append(weights.T)
    return np.stack(ys), np.stack(all_weights)


ATTENTION = {
    "regular": ("Regular", "LSTM", 5, False),
    "regular_keys": ("Regular", "LSTM", 5, True),
    "recurrent": ("Recurrent", "LayerNormLSTM", 5, False),
    "dot": ("Dot", "LSTM", H, False),
    "dot_query": ("Dot", "LSTM", 5, False),
    "coverage": ("SoftCoverage", "LSTM", 5, False),
}


@pytest.mark.parametrize(("attention_type", "kind", "size", "supplied"), ATTENTION.values(), ids=ATTENTION)
def test_a_decoder_of_blobs_computes_what_caffe2_does(attention_type, kind, size, supplied, random, assert_trees_close):
    cell, blobs = cell_blobs(random, kind, H + size), attention_blobs(random, attention_type, size, supplied=supplied)
    xs, encoder, lengths = random(TIME, BATCH, D), random(L, BATCH, size), np.array([L, 3])
    keys = random(L, BATCH, size) if supplied else None
    as_array = None if keys is None else jnp.asarray(keys)
    scoped = {f"a/decoder/{name}": blob for name, blob in cell.items()}
    scoped |= {f"a/{name}": blob for name, blob in blobs.items()}
    decoder, params = interop.from_caffe2_attention(scoped, attention_type, forget_bias=1.5)

    @jax.jit
    def run(params, xs):
        over = decoder.over(params, jnp.asarray(encoder), encoder_lengths=jnp.asarray(lengths), keys=as_array)
        return rs.scan(over, params, over.initial_carry(xs[0]), xs)[1]

    expected = attention_loop(cell, blobs, attention_type, xs, encoder, lengths, 1.5, keys)
    assert_trees_close(run(params, jnp.asarray(xs)), expected, tolerance=1e-9)
    back = interop.to_caffe2_attention(decoder, params, scope="a")
    assert {*scoped} - {*back} <= {"a/attention_zeros"}
    assert {name: blob.shape for name, blob in back.items()} == {name: scoped[name].shape for name in back}


def by_gate(random, *sources):
    sizes = {"input": D, "recurrent": H}
    return {
        source: {f"{gate}_w": random(H, sizes[source]) for gate in GATES} | {f"{gate}_b": random(H) for gate in GATES}
        for source in sources
    }


def as_blobs(values):
    names = {"input": "i2h", "recurrent": "gates_t"}
    return {
        f"{names[source]}_{suffix}": np.concatenate([gates[f"{gate}_{suffix}"] for gate in GATES])
        for source, gates in values.items()
        for suffix in "wb"
    }


def test_blobs_and_weights_by_gate_of_any_shape_give_the_same(random, assert_equal):
    values = by_gate(random, "input", "recurrent")
    expected = interop.from_caffe2(values, forget_bias=1.0)[1]
    shapes = {"i2h_w": (-1,), "i2h_b": (1, 1, -1), "gates_t_w": (4, H, H), "gates_t_b": (H, 4)}
    blobs = as_blobs(values)
    reshaped = {f"lstm/{name}": blobs[name].reshape(shape) for name, shape in shapes.items()}
    flat = {source: {name: a.reshape(1, -1, 1) for name, a in gates.items()} for source, gates in values.items()}
    for given in (blobs, reshaped, flat):
        assert_equal(interop.from_caffe2(given, forget_bias=1.0)[1], expected)


@pytest.mark.parametrize("form", [dict, as_blobs], ids=["by_gate", "blobs"])
def test_a_part_alone_gives_its_own_parameters_which_no_net_runs_with(form, random, assert_equal):
    values = by_gate(random, "input", "recurrent")
    whole = interop.from_caffe2(values)[1]
    net, of_input = interop.from_caffe2(form({"input": values["input"]}), forget_bias=1.0)
    recurrent_net, of_state = interop.from_caffe2(form({"recurrent": values["recurrent"]}))
    assert net == recurrent_net == rs.layer(rs.cells.LSTM(H, param_dtype=jnp.float64))
    assert (set(of_input), set(of_state)) == ({"kernel", "bias"}, {"recurrent_kernel", "bias"})
    forget = jnp.zeros(4 * H).at[H : 2 * H].set(1.0)
    together = of_input | of_state | {"bias": of_input["bias"] - forget + of_state["bias"]}
    assert jnp.allclose(together.pop("bias"), whole.pop("bias"), atol=1e-12)
    assert_equal(together, whole)
    with pytest.raises(ValueError, match=r"the parameters of 4 units must be .*; got 'bias' \S+ 'kernel' "):
        net(of_input, jnp.zeros((TIME, BATCH, D)))


@pytest.mark.parametrize("source", ["input", "recurrent"])
def test_a_part_goes_into_parameters_as_into_caffe2s_blobs(source, random, assert_equal):
    net, params = interop.from_caffe2(by_gate(random, "input", "recurrent"))
    part = by_gate(random, source)
    back, merged = interop.from_caffe2(part, into=params)
    # Caffe2's own net holds the rest: one bias is rnnscan's, the other zero.
    expected = interop.from_caffe2(interop.to_caffe2(net, params) | part)
    assert back == net == expected[0]
    assert_equal(merged, expected[1])
    assert not np.array_equal(merged["bias"], params["bias"])
    without = {name: leaf for name, leaf in params.items() if name != "bias"}
    assert interop.from_caffe2(part, into=without)[0] == net
