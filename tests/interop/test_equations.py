"""Nets of other libraries' tensors compute what loops straight from those libraries' documentations do."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import interop


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 2, 3, 4
H = HIDDEN_SIZE


@pytest.fixture
def random():
    generator = np.random.default_rng(0)
    return lambda *shape: 0.5 * generator.normal(size=shape)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def hard_sigmoid(z):
    return np.minimum(np.maximum(0.2 * z + 0.5, 0), 1)


def run(net, params, xs, carry=None):
    carry, ys = jax.jit(net)(params, jnp.asarray(xs), carry=carry)
    return carry, ys


def caffe2_loop(values, xs, h, c, forget_bias):
    """The LSTM of Caffe2: fused matrices of rows i, f, o, g, two biases, and the forget bias inside the unit."""
    names = ("input_gate", "forget_gate", "output_gate", "cell")
    fused = {
        (source, what): np.concatenate([values[source][f"{name}_{what}"] for name in names])
        for source in values
        for what in "wb"
    }
    ys = []
    for x in xs:
        i2h = x @ fused["input", "w"].T + fused["input", "b"]
        z = i2h + h @ fused["recurrent", "w"].T + fused["recurrent", "b"]
        i, f, o, g = z[:, :H], z[:, H : 2 * H] + forget_bias, z[:, 2 * H : 3 * H], z[:, 3 * H :]
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        ys.append(h)
    return (h, c), np.stack(ys)


@pytest.mark.parametrize("forget_bias", [0.0, 1.5])
def test_caffe2s_lstm(forget_bias, random, assert_trees_close):
    values = {
        source: {f"{name}_w": random(H, size) for name in ("input_gate", "forget_gate", "output_gate", "cell")}
        | {f"{name}_b": random(H) for name in ("input_gate", "forget_gate", "output_gate", "cell")}
        for source, size in (("input", INPUT_SIZE), ("recurrent", H))
    }
    xs, h, c = random(TIME, BATCH, INPUT_SIZE), random(BATCH, H), random(BATCH, H)
    net, params = interop.from_caffe2(values, forget_bias=forget_bias)
    actual = run(net, params, xs, (jnp.asarray(h), jnp.asarray(c)))
    assert_trees_close(actual, caffe2_loop(values, xs, h, c, forget_bias), tolerance=1e-9)


def dl4j_loop(tensors, xs, h, c, afn, ga):
    """DL4J's LSTMHelpers: blocks a (the input), f, o, g (the input gate), peepholes in the last three columns of RW."""
    recurrent, (wff, woo, wgg) = tensors["RW"][:, : 4 * H], (*tensors["RW"][:, 4 * H :].T,) or (0, 0, 0)
    ys = []
    for x in xs:
        z = x @ tensors["W"] + h @ recurrent + tensors["b"]
        z_a, z_f, z_o, z_g = z[:, :H], z[:, H : 2 * H], z[:, 2 * H : 3 * H], z[:, 3 * H :]
        a = afn(z_a)
        f = ga(z_f + wff * c)
        g = ga(z_g + wgg * c)
        c = f * c + g * a
        o = ga(z_o + woo * c)
        h = o * afn(c)
        ys.append(h)
    return (h, c), np.stack(ys)


@pytest.mark.parametrize("hard", [False, True], ids=["sigmoid", "hard_sigmoid"])
@pytest.mark.parametrize("peepholes", [0, 3], ids=["LSTM", "GravesLSTM"])
def test_dl4js_lstms(peepholes, hard, random, assert_trees_close):
    tensors = {"W": random(INPUT_SIZE, 4 * H), "RW": random(H, 4 * H + peepholes), "b": random(1, 4 * H)}
    xs, h, c = random(TIME, BATCH, INPUT_SIZE), random(BATCH, H), random(BATCH, H)
    net, params = interop.from_dl4j(tensors, gate_activation="hard_sigmoid" if hard else "sigmoid")
    assert net.cell.peepholes == bool(peepholes)
    actual = run(net, params, xs, (jnp.asarray(h), jnp.asarray(c)))
    expected = dl4j_loop(tensors, xs, h, c, np.tanh, hard_sigmoid if hard else sigmoid)
    assert_trees_close(actual, expected, tolerance=1e-9)


@pytest.mark.parametrize("merge", ["concat", "sum", "mean", "product", None])
def test_dl4js_bidirectional_lstms(merge, random, assert_trees_close):
    names = ("{}F", "{}B") if merge is None else ("f{}", "b{}")
    shapes = {"W": (INPUT_SIZE, 4 * H), "RW": (H, 4 * H + 3), "b": (1, 4 * H)}
    ways = [{name: random(*shape) for name, shape in shapes.items()} for _ in range(2)]
    given = {
        way.format(name): array for way, tensors in zip(names, ways, strict=True) for name, array in tensors.items()
    }
    xs, zeros = random(TIME, BATCH, INPUT_SIZE), np.zeros((BATCH, H))
    forward = dl4j_loop(ways[0], xs, zeros, zeros, np.tanh, sigmoid)[1]
    backward = dl4j_loop(ways[1], xs[::-1], zeros, zeros, np.tanh, sigmoid)[1][::-1]
    expected = {
        "concat": np.concatenate([forward, backward], -1),
        "mean": (forward + backward) / 2,
        "product": forward * backward,
    }.get(merge, forward + backward)
    net, params = interop.from_dl4j(given, merge=merge)
    assert_trees_close(run(net, params, xs)[1], expected, tolerance=1e-9)


ONNX_FUNCTIONS = {
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
    "Relu": lambda z: np.maximum(z, 0),
    "HardSigmoid": hard_sigmoid,
    "Softsign": lambda z: z / (1 + abs(z)),
}


def onnx_lstm(tensors, xs, h, c, functions):
    """The equations of ONNX's LSTM, for one direction: W[iofc], R[iofc], Wb[iofc], Rb[iofc], P[iof]."""
    f, g, hh = functions
    w_i, w_o, w_f, w_c = np.split(tensors["W"], 4)
    r_i, r_o, r_f, r_c = np.split(tensors["R"], 4)
    wb_i, wb_o, wb_f, wb_c, rb_i, rb_o, rb_f, rb_c = np.split(tensors.get("B", np.zeros(8 * H)), 8)
    p_i, p_o, p_f = np.split(tensors.get("P", np.zeros(3 * H)), 3)
    ys = []
    for x in xs:
        i_t = f(x @ w_i.T + h @ r_i.T + p_i * c + wb_i + rb_i)
        f_t = f(x @ w_f.T + h @ r_f.T + p_f * c + wb_f + rb_f)
        c_t = g(x @ w_c.T + h @ r_c.T + wb_c + rb_c)
        c = f_t * c + i_t * c_t
        o_t = f(x @ w_o.T + h @ r_o.T + p_o * c + wb_o + rb_o)
        h = o_t * hh(c)
        ys.append(h)
    return (h, c), np.stack(ys)


def onnx_gru(tensors, xs, h, functions, linear_before_reset):
    """The equations of ONNX's GRU, for one direction: W[zrh], R[zrh], Wb[zrh], Rb[zrh]."""
    f, g = functions
    w_z, w_r, w_h = np.split(tensors["W"], 3)
    r_z, r_r, r_h = np.split(tensors["R"], 3)
    wb_z, wb_r, wb_h, rb_z, rb_r, rb_h = np.split(tensors.get("B", np.zeros(6 * H)), 6)
    ys = []
    for x in xs:
        z_t = f(x @ w_z.T + h @ r_z.T + wb_z + rb_z)
        r_t = f(x @ w_r.T + h @ r_r.T + wb_r + rb_r)
        if linear_before_reset:
            h_t = g(x @ w_h.T + r_t * (h @ r_h.T + rb_h) + wb_h)
        else:
            h_t = g(x @ w_h.T + (r_t * h) @ r_h.T + rb_h + wb_h)
        h = (1 - z_t) * h_t + z_t * h
        ys.append(h)
    return (h,), np.stack(ys)


def onnx_rnn(tensors, xs, h, functions):
    """The equation of ONNX's RNN, for one direction."""
    (f,) = functions
    wb, rb = np.split(tensors.get("B", np.zeros(2 * H)), 2)
    ys = []
    for x in xs:
        h = f(x @ tensors["W"].T + h @ tensors["R"].T + wb + rb)
        ys.append(h)
    return (h,), np.stack(ys)


ONNX = {
    "lstm": ("LSTM", {}, "BP"),
    "lstm_reverse": ("LSTM", {"direction": "reverse"}, "B"),
    "lstm_bidirectional": ("LSTM", {"direction": "bidirectional"}, "BP"),
    "lstm_activations": ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Softsign"]}, ""),
    "gru": ("GRU", {}, "B"),
    "gru_linear_before_reset": ("GRU", {"linear_before_reset": 1}, "B"),
    "gru_bidirectional": ("GRU", {"direction": "bidirectional", "linear_before_reset": 1}, "B"),
    "rnn": ("RNN", {}, "B"),
    "rnn_relu_and_tanh": ("RNN", {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}, ""),
}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def onnx_loop(kind, tensors, attributes, xs, states):
    """An ONNX operator: the carries of its directions, and its outputs side by side."""
    directions = {"forward": "f", "reverse": "b", "bidirectional": "fb"}[attributes.get("direction", "forward")]
    names = attributes.get("activations", DEFAULTS[kind] * len(directions))
    functions = [ONNX_FUNCTIONS[name] for name in names]
    count = len(functions) // len(directions)
    carries, outputs = [], []
    for number, direction in enumerate(directions):
        of_direction = {name: tensor[number] for name, tensor in tensors.items()}
        loop = {"LSTM": onnx_lstm, "GRU": onnx_gru, "RNN": onnx_rnn}[kind]
        options = [attributes.get("linear_before_reset", 0)] if kind == "GRU" else []
        order = slice(None, None, -1 if direction == "b" else 1)
        of_direction_functions = functions[number * count : (number + 1) * count]
        carry, ys = loop(of_direction, xs[order], *states[number], of_direction_functions, *options)
        carries.append(carry)
        outputs.append(ys[order])
    return (tuple(carries) if len(directions) == 2 else carries[0]), np.concatenate(outputs, axis=-1)


@pytest.mark.parametrize(("kind", "attributes", "optional"), ONNX.values(), ids=ONNX)
def test_onnxs_operators(kind, attributes, optional, random, assert_trees_close):
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    blocks = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    tensors = {"W": random(directions, blocks * H, INPUT_SIZE), "R": random(directions, blocks * H, H)}
    if "B" in optional:
        tensors["B"] = random(directions, 2 * blocks * H)
    if "P" in optional:
        tensors["P"] = random(directions, 3 * H)
    xs = random(TIME, BATCH, INPUT_SIZE)
    states = [tuple(random(BATCH, H) for _ in range(2 if kind == "LSTM" else 1)) for _ in range(directions)]
    net, params = interop.from_onnx(tensors, kind, **attributes)
    carry = jax.tree.map(jnp.asarray, tuple(states) if directions == 2 else states[0])
    expected = onnx_loop(kind, tensors, attributes, xs, states)
    assert_trees_close(run(net, params, xs, carry), expected, tolerance=1e-9)


def test_onnxs_attributes_are_those_of_the_net():
    net = rs.bidirectional(rs.cells.GRU(4, activation="relu"))
    assert interop.onnx_attributes(net) == {
        "direction": "bidirectional",
        "hidden_size": 4,
        "activations": ["Sigmoid", "Relu", "Sigmoid", "Relu"],
        "linear_before_reset": 1,
    }
    assert interop.onnx_attributes(rs.layer(rs.cells.LSTM(3)))["activations"] == ["Sigmoid", "Tanh", "Tanh"]


class LSTMCell(SimpleNamespace):
    """An Equinox cell has its arrays as attributes."""


class GRUCell(SimpleNamespace):
    pass


def equinox_lstm(cell, xs, h, c):
    """`eqx.nn.LSTMCell`: rows i, f, g, o."""
    ys = []
    for x in xs:
        i, f, g, o = np.split(x @ cell.weight_ih.T + h @ cell.weight_hh.T + cell.bias, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        ys.append(h)
    return (h, c), np.stack(ys)


def equinox_gru(cell, xs, h):
    """`eqx.nn.GRUCell`: rows reset, inp, new, and a bias of the reset product."""
    ys = []
    for x in xs:
        igates = np.split(x @ cell.weight_ih.T + cell.bias, 3, axis=-1)
        hgates = np.split(h @ cell.weight_hh.T, 3, axis=-1)
        reset, inp = sigmoid(igates[0] + hgates[0]), sigmoid(igates[1] + hgates[1])
        new = np.tanh(igates[2] + reset * (hgates[2] + cell.bias_n))
        h = new + inp * (h - new)
        ys.append(h)
    return (h,), np.stack(ys)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_equinoxs_cells(kind, random, assert_trees_close):
    blocks, states = {"LSTMCell": (4, 2), "GRUCell": (3, 1)}[kind]
    arrays = {
        "weight_ih": random(blocks * H, INPUT_SIZE),
        "weight_hh": random(blocks * H, H),
        "bias": random(blocks * H),
    }
    cell = LSTMCell(**arrays) if kind == "LSTMCell" else GRUCell(**arrays, bias_n=random(H))
    xs, carry = random(TIME, BATCH, INPUT_SIZE), tuple(random(BATCH, H) for _ in range(states))
    net, params = interop.from_equinox(cell)
    expected = (equinox_lstm if kind == "LSTMCell" else equinox_gru)(cell, xs, *carry)
    assert_trees_close(run(net, params, xs, jax.tree.map(jnp.asarray, carry)), expected, tolerance=1e-9)


def haiku_lstm(params, xs, h, c):
    """`hk.LSTM`: one kernel for x and h, columns i, g, f, o, and a forget bias of 1."""
    w, b = params["core/linear"]["w"], params["core/linear"]["b"]
    ys = []
    for x in xs:
        i, g, f, o = np.split(np.concatenate([x, h], axis=-1) @ w + b, 4, axis=-1)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        ys.append(h)
    return (h, c), np.stack(ys)


def haiku_gru(params, xs, h):
    """`hk.GRU`: columns z, r, a; z weighs the candidate, and r the state before its product."""
    w_i, w_h, b = (np.split(params["core"][name], 3, axis=-1) for name in ("w_i", "w_h", "b"))
    ys = []
    for x in xs:
        z, r = (sigmoid(x @ w_i[gate] + h @ w_h[gate] + b[gate]) for gate in (0, 1))
        a = np.tanh(x @ w_i[2] + (r * h) @ w_h[2] + b[2])
        h = (1 - z) * h + z * a
        ys.append(h)
    return (h,), np.stack(ys)


def haiku_rnn(params, xs, h):
    """`hk.VanillaRNN`: two dense layers and relu."""
    of_input, of_hidden = params["core/linear"], params["core/linear_1"]
    ys = []
    for x in xs:
        h = np.maximum(x @ of_input["w"] + of_input["b"] + h @ of_hidden["w"] + of_hidden.get("b", 0), 0)
        ys.append(h)
    return (h,), np.stack(ys)


def dense(random, rows, columns):
    return {"w": random(rows, columns), "b": random(columns)}


HAIKU = {
    "LSTM": (haiku_lstm, 2, lambda random: {"core/linear": dense(random, INPUT_SIZE + H, 4 * H)}),
    "GRU": (
        haiku_gru,
        1,
        lambda random: {"core": {"w_i": random(INPUT_SIZE, 3 * H), "w_h": random(H, 3 * H), "b": random(3 * H)}},
    ),
    "VanillaRNN": (
        haiku_rnn,
        1,
        lambda random: {
            "core/linear": dense(random, INPUT_SIZE, H),
            "core/linear_1": dense(random, H, H),
        },
    ),
}


@pytest.mark.parametrize("kind", HAIKU)
def test_haikus_cores(kind, random, assert_trees_close):
    loop, states, draw = HAIKU[kind]
    values = draw(random)
    xs, carry = random(TIME, BATCH, INPUT_SIZE), tuple(random(BATCH, H) for _ in range(states))
    net, params = interop.from_haiku(values, kind)
    actual = run(net, params, xs, jax.tree.map(jnp.asarray, carry))
    assert_trees_close(actual, loop(values, xs, *carry), tolerance=1e-9)
    again = jax.tree.map(np.asarray, interop.to_haiku(net, params, name="core"))
    assert_trees_close(loop(again, xs, *carry), loop(values, xs, *carry), tolerance=1e-9)


def test_a_haiku_rnn_may_have_one_bias(random, assert_trees_close):
    values = HAIKU["VanillaRNN"][2](random)
    del values["core/linear_1"]["b"]
    xs, hidden = random(TIME, BATCH, INPUT_SIZE), random(BATCH, H)
    actual = run(*interop.from_haiku(values, "VanillaRNN"), xs, (jnp.asarray(hidden),))
    assert_trees_close(actual, haiku_rnn(values, xs, hidden), tolerance=1e-9)
