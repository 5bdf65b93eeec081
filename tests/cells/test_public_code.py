"""Cells with the weights of public code, against slow loops from its equations with its names, layouts and options.

docs/make_cells_page.py names these tests in the table of public code.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from tiers import variants
from zoo.case import Case, assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

LENGTH, BATCH = 6, 3


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def softplus(z):
    return jnp.log(1 + jnp.exp(z))


def silu(z):
    return z * sigmoid(z)


def draw(seed, **shapes):
    """Random weights by name, none of them zero."""
    random = np.random.default_rng(seed)
    return {name: jnp.asarray(0.5 * random.normal(size=shape)) for name, shape in shapes.items()}


def compare(public, cell, weights, xs):
    """Compare outputs, and gradients for the public weights and for xs.

    `public(weights, xs)` and `cell(weights, xs)` return ys.
    """

    def run(layer):
        def loss_and_ys(weights, xs):
            ys = layer(weights, xs)
            return Case.loss(ys), ys

        return jax.jit(jax.grad(loss_and_ys, argnums=(0, 1), has_aux=True))(weights, xs)

    (gradients, ys), (expected_gradients, expected) = run(cell), run(public)
    assert_trees_close(ys, expected, tolerance=1e-10)
    assert_trees_close(gradients, expected_gradients, tolerance=1e-9)
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected_gradients):
        assert np.any(leaf != 0), jax.tree_util.keystr(path)


# state-spaces/mamba: mamba_ssm/ops/selective_scan_interface.py, selective_scan_ref; mamba_ssm/modules/mamba_simple.py.
def mamba(w, xs):
    """dA = exp(dt A), dB = dt B, channel after channel."""
    rank, states = w["dt_proj.weight"].shape[1], w["A_log"].shape[1]
    state, ys = [jnp.zeros((xs.shape[1], states))] * xs.shape[2], []
    for x in xs:
        dt, b, c = jnp.split(x @ w["x_proj.weight"].T, [rank, rank + states], axis=1)
        dt = softplus(dt @ w["dt_proj.weight"].T + w["dt_proj.bias"])
        outputs = []
        for channel, a in enumerate(-jnp.exp(w["A_log"])):
            step = dt[:, channel, None]
            state[channel] = jnp.exp(step * a) * state[channel] + step * b * x[:, channel, None]
            outputs.append((state[channel] * c).sum(1) + w["D"][channel] * x[:, channel])
        ys.append(jnp.stack(outputs, axis=1))
    return jnp.stack(ys)


def test_s6_is_the_selective_scan_of_mamba():
    units, states, rank = 4, 3, 2
    cell = cells.S6(units, state_size=states, rank=rank, discretization="euler")
    weights = draw(
        0,
        **{"x_proj.weight": (rank + 2 * states, units), "dt_proj.weight": (units, rank), "dt_proj.bias": (units,)},
        A_log=(units, states),
        D=(units,),
    )

    def ours(w, xs):
        params = {
            "kernel": w["x_proj.weight"].T,
            "step_kernel": w["dt_proj.weight"].T,
            "step_bias": w["dt_proj.bias"],
            "log_decay": w["A_log"],
            "skip": w["D"],
        }
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]

    compare(mamba, ours, weights, draw(1, xs=(LENGTH, BATCH, units))["xs"])


# google-deepmind/recurrentgemma: recurrentgemma/jax/layers.py, RGLRU.
def recurrentgemma(w, xs, segment_pos):
    """Tokens `(T, N)` with their positions in a document; a state of an earlier document does not reach a later one."""
    heads, head, _ = w["a_gate.w"].shape
    h, ys = jnp.zeros(xs.shape[1:]), []
    for x, position in zip(xs, segment_pos, strict=True):
        gates = []
        for gate in ("a_gate", "input_gate"):
            blocks = [
                x[:, block * head : (block + 1) * head] @ w[f"{gate}.w"][block] + w[f"{gate}.b"][block]
                for block in range(heads)
            ]
            gates.append(sigmoid(jnp.concatenate(blocks, axis=1)))
        log_a = -8 * gates[0] * softplus(w["a_param"])
        first = (position == 0)[:, None]
        multiplier = jnp.where(first, 1, jnp.sqrt(1 - jnp.exp(2 * log_a)))
        h = jnp.where(first, 0, jnp.exp(log_a)) * h + multiplier * gates[1] * x
        ys.append(h)
    return jnp.stack(ys)


def from_recurrentgemma(w):
    """The parameters of an RGLRU."""
    return {
        "kernel": jnp.concatenate([w["a_gate.w"], w["input_gate.w"]], axis=2),
        "bias": jnp.concatenate([w["a_gate.b"].ravel(), w["input_gate.b"].ravel()]),
        "decay": -w["a_param"],
    }


def documents(seed):
    """Random positions of tokens in packed documents; every row begins with one."""
    random = np.random.default_rng(seed)
    first = random.random((LENGTH, BATCH)) < 0.4
    first[0] = True
    steps = np.arange(LENGTH)[:, None]
    return steps - np.maximum.accumulate(np.where(first, steps, 0))


RECURRENTGEMMA = {"a_gate.w": (2, 2, 2), "a_gate.b": (2, 2), "input_gate.w": (2, 2, 2), "input_gate.b": (2, 2)}


@pytest.mark.parametrize("engine", ["fission", "lax"])
def test_rglru_is_that_of_recurrentgemma_over_packed_documents(engine):
    cell = cells.RGLRU(4, heads=2, first_step="plain")
    segment_pos = documents(0)
    assert (segment_pos[1:] == 0).any()
    assert (segment_pos[1:] > 0).any()

    def ours(w, xs):
        reset = jnp.asarray(segment_pos == 0)
        return rs.scan(cell, from_recurrentgemma(w), cell.initial_carry(xs[0]), xs, reset=reset, engine=engine)[1]

    compare(
        lambda w, xs: recurrentgemma(w, xs, segment_pos),
        ours,
        draw(2, **RECURRENTGEMMA, a_param=(4,)),
        draw(3, xs=(LENGTH, BATCH, 4))["xs"],
    )


def test_rglru_resumes_a_document_of_recurrentgemma():
    """Its cache is h alone: a decoder that resumes gives the cell `started`."""
    cell = cells.RGLRU(4, heads=2, first_step="plain")
    weights, xs = draw(2, **RECURRENTGEMMA, a_param=(4,)), draw(3, xs=(LENGTH, BATCH, 4))["xs"]
    expected = recurrentgemma(weights, xs, np.arange(LENGTH)[:, None] + np.zeros(BATCH, int))
    carry = (expected[2], jnp.ones(BATCH, bool))
    _, ys = rs.scan(cell, from_recurrentgemma(weights), carry, xs[3:])
    assert_trees_close(ys, expected[3:], tolerance=1e-10)


# NicolasZucchet/minimal-LRU: lru/model.py, LRU.
def minimal_lru(w, xs):
    """h = lambda h + exp(gamma_log) B u and y = Re(C h) + D u, row after row."""
    eigenvalues = jnp.exp(-jnp.exp(w["nu_log"]) + 1j * jnp.exp(w["theta_log"]))
    into = (w["B_re"] + 1j * w["B_im"]) * jnp.exp(w["gamma_log"])[:, None]
    out = w["C_re"] + 1j * w["C_im"]
    rows = []
    for row in range(xs.shape[1]):
        h, ys = jnp.zeros(eigenvalues.shape, complex), []
        for u in xs[:, row]:
            h = eigenvalues * h + into @ u
            ys.append((out @ h).real + w["D"] * u)
        rows.append(jnp.stack(ys))
    return jnp.stack(rows, axis=1)


def test_lru_is_that_of_minimal_lru():
    units, states = 4, 3
    cell = cells.LRU(units, state_size=states, skip="vector")
    weights = draw(4, nu_log=(states,), theta_log=(states,), gamma_log=(states,), D=(units,))
    weights |= draw(5, B_re=(states, units), B_im=(states, units), C_re=(units, states), C_im=(units, states))

    def ours(w, xs):
        params = {
            "log_decay": w["nu_log"],
            "log_phase": w["theta_log"],
            "log_scale": w["gamma_log"],
            "input_kernel_real": w["B_re"].T,
            "input_kernel_imag": w["B_im"].T,
            "output_kernel_real": w["C_re"].T,
            "output_kernel_imag": w["C_im"].T,
            "skip": w["D"],
        }
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]

    compare(minimal_lru, ours, weights, draw(6, xs=(LENGTH, BATCH, units))["xs"])


# NX-AI/xlstm: in xlstm/blocks/mlstm, mLSTMLayer of layer.py, mLSTMCell of cell.py, and recurrent_step_stabilized_simple
# of backends.py. NX-AI/xlstm-jax has the same equations in xlstm_jax/models/xlstm_clean/blocks/mlstm.
def xlstm_projections(w, xs):
    """The convolution before q and k, and block-diagonal projections."""
    window = len(w["conv1d"])
    padded = jnp.concatenate([jnp.zeros((window - 1, *xs.shape[1:])), xs])
    filtered = sum(w["conv1d"][past] * padded[past : past + len(xs)] for past in range(window))
    convolved = silu(filtered + w["conv1d_bias"])

    def headwise(part, of):
        kernel = w[f"{of}_proj"]
        blocks = jnp.split(part, len(kernel), axis=-1)
        products = [block @ block_kernel.T for block, block_kernel in zip(blocks, kernel, strict=True)]
        return jnp.concatenate(products, axis=-1) + w[f"{of}_proj_bias"]

    return headwise(convolved, "q"), headwise(convolved, "k"), headwise(xs, "v"), convolved


def xlstm_norm(w, read):
    """`outnorm`, a group norm for each head, of reads `(..., heads, d)`."""
    centered = read - read.mean(-1, keepdims=True)
    normalized = centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    return normalized.reshape(*read.shape[:-2], -1) * (1 + w["outnorm"])


def xlstm(w, xs):
    """The mLSTM branch of a block up to its skip, head after head."""
    queries, keys, values, convolved = xlstm_projections(w, xs)
    gate_inputs = jnp.concatenate([queries, keys, values], axis=-1)
    log_input_gates = gate_inputs @ w["igate"].T + w["igate_bias"]
    log_forget_gates = jnp.log(sigmoid(gate_inputs @ w["fgate"].T + w["fgate_bias"]))
    heads = len(w["igate"])
    reads = []
    for head in range(heads):
        q, k, v = (jnp.split(part, heads, axis=-1)[head] for part in (queries, keys, values))
        d = q.shape[-1]
        batch, ys = xs.shape[1], []
        memory, normalizer, m = jnp.zeros((batch, d, d)), jnp.zeros((batch, d)), jnp.zeros((batch, 1))
        for t in range(len(xs)):
            log_i, log_f = log_input_gates[t, :, head, None], log_forget_gates[t, :, head, None]
            new_m = jnp.maximum(log_f + m, log_i)
            i, f, m = jnp.exp(log_i - new_m), jnp.exp(log_f + m - new_m), new_m
            scaled = k[t] / jnp.sqrt(d)
            memory = f[..., None] * memory + i[..., None] * scaled[:, :, None] * v[t][:, None, :]
            normalizer = f * normalizer + i * scaled
            found = jnp.einsum("nk,nkv->nv", q[t], memory)
            length = jnp.maximum(jnp.abs((q[t] * normalizer).sum(-1)), jnp.exp(-m[:, 0]))
            ys.append(found / (length[:, None] + 1e-6))
        reads.append(jnp.stack(ys))
    return xlstm_norm(w, jnp.stack(reads, axis=-2)) + w["learnable_skip"] * convolved


def xlstm_weights(seed, units, heads, blocks, window):
    block, biased = units // blocks, ("q", "k", "v")
    return draw(
        seed,
        conv1d=(window, units),
        conv1d_bias=(units,),
        igate=(heads, 3 * units),
        fgate=(heads, 3 * units),
        igate_bias=(heads,),
        fgate_bias=(heads,),
        outnorm=(units,),
        learnable_skip=(units,),
        **{f"{of}_proj": (blocks, block, block) for of in biased},
        **{f"{of}_proj_bias": (units,) for of in biased},
    )


def test_mlstm_is_the_mlstm_layer_of_xlstm():
    units, heads = 8, 2
    cell = cells.MLSTM(units, heads=heads, projections=False, epsilon=1e-6)

    def ours(w, xs):
        *projected, convolved = xlstm_projections(w, xs)
        inputs = jnp.concatenate(projected, axis=-1)
        params = {
            "gate_kernel": jnp.concatenate([w["igate"], w["fgate"]]).T,
            "gate_bias": jnp.concatenate([w["igate_bias"], w["fgate_bias"]]),
        }
        _, read = rs.scan(cell, params, cell.initial_carry(inputs[0]), inputs)
        by_head = read.reshape(*read.shape[:-1], heads, -1)
        return xlstm_norm(w, by_head) + w["learnable_skip"] * convolved

    # Some |n . q| are above the bound of 1 and some below it.
    compare(xlstm, ours, xlstm_weights(7, units, heads, 4, 3), 3 * draw(8, xs=(LENGTH, BATCH, units))["xs"])


# NX-AI/xlstm: xlstm/blocks/slstm/src/vanilla/slstm.py, slstm_forward_pointwise, which layer.py gives Wx.
def xlstm_slstm(w, xs):
    """Of Wx in the order i f z o, head after head; the state begins with n = 0, where m is not read."""
    heads, units = len(w["R"]), xs.shape[-1] // 4
    y, c, n, m = jnp.zeros((4, xs.shape[1], units))
    ys = []
    for step, x in enumerate(xs):
        recurrent = [
            jnp.concatenate([part @ w["R"][head, gate].T for head, part in enumerate(jnp.split(y, heads, 1))], 1)
            for gate in range(4)
        ]
        i, f, z, o = jnp.split(x + jnp.concatenate(recurrent, axis=1) + w["b"], 4, axis=1)
        log_f = jnp.log(sigmoid(f)) + m
        m = i if step == 0 else jnp.maximum(i, log_f)
        i, f = jnp.minimum(jnp.exp(i - m), 1), jnp.minimum(jnp.exp(log_f - m), 1)
        c, n = f * c + i * jnp.tanh(z), f * n + i
        y = sigmoid(o) * c / n
        ys.append(y)
    return jnp.stack(ys)


def test_slstm_is_that_of_xlstm_for_the_identity_as_its_kernel():
    units, heads = 4, 2
    cell = cells.SLSTM(units, heads=heads)

    def ours(w, xs):
        recurrent = jnp.moveaxis(w["R"], (0, 1, 2, 3), (0, 2, 3, 1)).reshape(heads, units // heads, -1)
        params = {"kernel": jnp.eye(4 * units), "recurrent_kernel": recurrent, "bias": w["b"]}
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]

    weights = draw(9, R=(heads, 4, units // heads, units // heads), b=(4 * units,))
    compare(xlstm_slstm, ours, weights, 2 * draw(10, xs=(LENGTH, BATCH, 4 * units))["xs"])


# state-spaces/mamba: mamba_ssm/modules/mamba2_simple.py, Mamba2Simple, and with groups mamba2.py, Mamba2.
def mamba2(w, xs, *, groups):
    """The order of in_proj is z, x, B, C, dt; the norm is that of a group, after the gate."""
    heads, inner, window = len(w["A_log"]), len(w["norm.weight"]), w["conv1d.weight"].shape[-1]
    width = (w["conv1d.weight"].shape[0] - inner) // (2 * groups)
    z, inputs, dt = jnp.split(xs @ w["in_proj.weight"].T, [inner, w["in_proj.weight"].shape[0] - heads], axis=-1)
    dt = softplus(dt + w["dt_bias"])
    padded = jnp.concatenate([jnp.zeros((window - 1, *inputs.shape[1:])), inputs])
    filtered = sum(w["conv1d.weight"][:, 0, past] * padded[past : past + len(xs)] for past in range(window))
    x, b, c = jnp.split(silu(filtered + w["conv1d.bias"]), [inner, inner + groups * width], axis=-1)
    ys = []
    for head in range(heads):
        group = head * groups // heads
        x_head = jnp.split(x, heads, axis=-1)[head]
        b_head, c_head = (jnp.split(part, groups, axis=-1)[group] for part in (b, c))
        state, outputs = jnp.zeros((xs.shape[1], x_head.shape[-1], width)), []
        for t in range(len(xs)):
            step = dt[t, :, head, None, None]
            written = step * x_head[t][:, :, None] * b_head[t][:, None, :]
            state = jnp.exp(-step * jnp.exp(w["A_log"][head])) * state + written
            outputs.append((state * c_head[t][:, None, :]).sum(-1) + w["D"][head] * x_head[t])
        ys.append(jnp.stack(outputs))
    gated = jnp.concatenate(ys, axis=-1) * silu(z)
    normalized = [part / jnp.sqrt((part**2).mean(-1, keepdims=True) + 1e-5) for part in jnp.split(gated, groups, -1)]
    return (jnp.concatenate(normalized, axis=-1) * w["norm.weight"]) @ w["out_proj.weight"].T


@pytest.mark.parametrize("groups", variants([1, 2], [2]))
def test_mamba2_is_that_of_mamba(groups):
    units, heads, keys, values, window = 4, 4, 2, 2, 3
    cell = cells.Mamba2(units, heads=heads, key_size=keys, value_size=values, groups=groups, window=window)
    inner, channels = heads * values, heads * values + 2 * groups * keys
    shapes = {"in_proj.weight": (inner + channels + heads, units), "out_proj.weight": (units, inner)}
    convolution = {"conv1d.weight": (channels, 1, window), "conv1d.bias": (channels,), "norm.weight": (inner,)}
    weights = draw(11, **shapes, **convolution, dt_bias=(heads,), A_log=(heads,), D=(heads,))

    def ours(w, xs):
        params = {
            "kernel": w["in_proj.weight"].T,
            "convolution_kernel": w["conv1d.weight"][:, 0].T,
            "convolution_bias": w["conv1d.bias"],
            "step_bias": w["dt_bias"],
            "log_decay": w["A_log"],
            "skip": w["D"],
            "norm_scale": w["norm.weight"],
            "output_kernel": w["out_proj.weight"].T,
        }
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]

    compare(lambda w, xs: mamba2(w, xs, groups=groups), ours, weights, draw(12, xs=(LENGTH, BATCH, units))["xs"])
