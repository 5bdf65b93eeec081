"""Linear attention and selective state spaces against the equations of their papers.

The references of linear attention are its quadratic form: each step weighs the values of all steps up to its own.
Those of S6 and DeltaNet are loops of outer products.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from tiers import variants
from zoo.case import Case, assert_trees_close
from zoo.matrix_states import CASES


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def silu(z):
    return z * sigmoid(z)


def softplus(z):
    return jnp.log(1 + jnp.exp(z))


def layer_norm(z, epsilon):
    centered = z - z.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)


def blocks_of(z, heads, *sizes):
    """The blocks of z's columns, each of them a list of its heads."""
    whole = []
    for size in sizes:
        now, z = z[..., : heads * size], z[..., heads * size :]
        whole.append([now[..., head * size : (head + 1) * size] for head in range(heads)])
    assert not z.shape[-1]
    return whole


def quadratic(q, k, v, log_decay, before):
    """y_t = sum_{s <= t} (q_t . prod_{s < r <= t} a_r k_s) v_s, and the state before; one head, all steps at once."""
    passed = jnp.cumsum(jnp.broadcast_to(log_decay, k.shape), axis=0)
    earlier = jnp.tril(jnp.ones((len(k), len(k))))[:, :, None]
    scores = earlier * jnp.einsum("tnk,tsnk,snk->tsn", q, jnp.exp(passed[:, None] - passed[None]), k)
    ys = jnp.einsum("tsn,snv->tnv", scores, v) + jnp.einsum("tnk,nkv->tnv", q * jnp.exp(passed), before)
    written = jnp.einsum("snk,snv->nkv", jnp.exp(passed[-1] - passed) * k, v)
    return jnp.exp(passed[-1])[..., None] * before + written, ys


def gla(cell, p, carry, xs):
    """Equation 3 and section 4.4."""
    kernel, narrow = jnp.split(p["kernel"], [p["kernel"].shape[1] - cell.decay_rank], axis=1)
    queries, keys, values, gates = blocks_of(xs @ kernel, cell.heads, cell.keys, cell.keys, cell.values, cell.values)
    (decays,) = blocks_of(xs @ narrow @ p["decay_kernel"] + p["decay_bias"], cell.heads, cell.keys)
    (biases,) = blocks_of(p["gate_bias"], cell.heads, cell.values)
    states, outputs = [], []
    for head in range(cell.heads):
        log_decay = jnp.log(sigmoid(decays[head]) ** (1 / cell.temperature))
        key = keys[head] / jnp.sqrt(cell.keys)
        state, o = quadratic(queries[head], key, values[head], log_decay, carry[0][:, head])
        normalized = p["norm_scale"] * layer_norm(o, cell.epsilon) + p["norm_bias"]
        outputs.append(silu(gates[head] + biases[head]) * normalized)
        states.append(state)
    return (jnp.stack(states, axis=1),), jnp.concatenate(outputs, axis=-1) @ p["output_kernel"]


def retnet(cell, p, carry, xs):
    """Equations 5 and 8."""
    queries, keys, values, gates = blocks_of(
        xs @ p["kernel"], cell.heads, cell.keys, cell.keys, cell.values, cell.values
    )
    states, outputs = [], []
    for head in range(cell.heads):
        log_decay = np.log(1 - 2.0 ** (-5 - head))
        key = keys[head] / jnp.sqrt(cell.keys)
        state, o = quadratic(queries[head], key, values[head], log_decay, carry[0][:, head])
        outputs.append(silu(gates[head]) * layer_norm(o, cell.epsilon))
        states.append(state)
    return (jnp.stack(states, axis=1),), jnp.concatenate(outputs, axis=-1) @ p["output_kernel"]


def linear_attention(cell, p, carry, xs):
    """Equations 7 to 9, causal."""
    phi = lambda z: jnp.where(z > 0, z, jnp.exp(z) - 1) + 1  # noqa: E731
    projected = xs @ p["kernel"] + p.get("bias", 0)
    queries, keys, values = blocks_of(projected, cell.heads, cell.keys, cell.keys, cell.values)
    states, normalizers, outputs = [], [], []
    for head in range(cell.heads):
        q, k, v = phi(queries[head]), phi(keys[head]), values[head]
        state, o = quadratic(q, k, v, 0.0, carry[0][:, head])
        normalizer, weight = quadratic(q, k, jnp.ones((*k.shape[:-1], 1)), 0.0, carry[1][:, head, :, None])
        outputs.append(o / (weight + cell.epsilon))
        states.append(state)
        normalizers.append(normalizer[..., 0])
    ys = jnp.concatenate(outputs, axis=-1) @ p["output_kernel"] + p.get("output_bias", 0)
    return (jnp.stack(states, axis=1), jnp.stack(normalizers, axis=1)), ys


def mamba2(cell, p, carry, xs):
    """The block of figure 6 with the quadratic form of SSD, (L * C B^T) X: its B, C and X are k, q and v."""
    heads, inner = cell.heads, cell.heads * cell.values
    gates, inputs, steps = jnp.split(xs @ p["kernel"], [inner, p["kernel"].shape[1] - heads], axis=-1)
    padded = jnp.concatenate([jnp.moveaxis(carry[1], 1, 0), inputs])
    filtered = p["convolution_bias"] + sum(
        p["convolution_kernel"][past] * padded[past : past + len(xs)] for past in range(cell.window)
    )
    values, keys = jnp.split(silu(filtered), [inner], axis=-1)
    (values,), (keys, queries) = blocks_of(values, heads, cell.values), blocks_of(keys, cell.groups, *[cell.keys] * 2)
    states, outputs = [], []
    for head in range(heads):
        group = head * cell.groups // heads
        dt = softplus(steps[..., head : head + 1] + p["step_bias"][head])
        log_decay = -dt * jnp.exp(p["log_decay"][head])
        state, o = quadratic(queries[group], keys[group], dt * values[head], log_decay, carry[0][:, head])
        outputs.append(o + p["skip"][head] * values[head])
        states.append(state)
    gated = jnp.concatenate(outputs, axis=-1) * silu(gates)
    by_group = jnp.split(gated, cell.groups, axis=-1)
    normalized = [z / jnp.sqrt((z**2).mean(-1, keepdims=True) + cell.epsilon) for z in by_group]
    ys = (p["norm_scale"] * jnp.concatenate(normalized, axis=-1)) @ p["output_kernel"]
    return (jnp.stack(states, axis=1), jnp.moveaxis(padded[len(xs) :], 0, 1)), ys


def s6(cell, p, carry, xs):
    """Equations 2 and 4, or the Euler method, with the choices of algorithm 2, channel after channel."""
    rank = p["step_kernel"].shape[0]
    (state,), ys = carry, []
    for x in xs:
        r, b, c = jnp.split(x @ p["kernel"], [rank, rank + cell.state_size], axis=-1)
        dt = softplus(r @ p["step_kernel"] + p["step_bias"])
        channels, outputs = [], []
        for channel in range(cell.hidden_size):
            a = -jnp.exp(p["log_decay"][channel])
            scaled = dt[:, channel, None] * a
            b_bar = dt[:, channel, None] * b
            if cell.discretization == "zoh":
                b_bar = 1 / scaled * (jnp.exp(scaled) - 1) * b_bar
            h = jnp.exp(scaled) * state[:, channel] + b_bar * x[:, channel, None]
            channels.append(h)
            outputs.append((c * h).sum(-1) + p["skip"][channel] * x[:, channel])
        state = jnp.stack(channels, axis=1)
        ys.append(jnp.stack(outputs, axis=1))
    return (state,), jnp.stack(ys)


def delta_net(cell, p, carry, xs):
    """S_t = S_{t-1} (I - beta k k^T) + beta v k^T of section 2.2, transposed, in its layer."""
    unit = lambda z: z / jnp.sqrt((z**2).sum(-1, keepdims=True) + 1e-6)  # noqa: E731
    states, ys = [carry[0][:, head] for head in range(cell.heads)], []
    for x in xs:
        parts = blocks_of(x @ p["kernel"], cell.heads, cell.keys, cell.keys, cell.values, 1)
        outputs = []
        for head, (q, k, v, b) in enumerate(zip(*parts, strict=True)):
            q, k, v, beta = unit(silu(q)), unit(silu(k)), silu(v), sigmoid(b)[:, :, None]
            erase = jnp.eye(cell.keys) - beta * (k[:, :, None] * k[:, None, :])
            states[head] = erase @ states[head] + beta * (k[:, :, None] * v[:, None, :])
            o = (q[:, None, :] @ states[head])[:, 0]
            outputs.append(p["norm_scale"] * o / jnp.sqrt((o**2).mean(-1, keepdims=True) + cell.epsilon))
        ys.append(jnp.concatenate(outputs, axis=-1) @ p["output_kernel"])
    return (jnp.stack(states, axis=1),), jnp.stack(ys)


PAPERS = {
    "GLA": gla,
    "RetNet": retnet,
    "LinearAttention": linear_attention,
    "Mamba2": mamba2,
    "S6": s6,
    "DeltaNet": delta_net,
}
# Without a window a part of Mamba2's carry is empty.
EVERY = CASES | {"Mamba2 without a window": Case(cells.Mamba2(4, heads=2, key_size=3, window=1))}
FORMS = {form: (case, PAPERS[form.split()[0]]) for form, case in EVERY.items()}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("case", "paper"), variants(FORMS, ["Mamba2 groups"]))
def test_values_and_gradients_are_those_of_the_papers(case, paper):
    arguments = case.arguments(length=4)
    expected = jax.jit(lambda *a: case.gradients(lambda *a: paper(case.cell, *a), *a))(*arguments)
    actual = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    assert_trees_close(actual, expected, tolerance=1e-9)


STATES = {
    "GLA": ["linear"],
    "RetNet": ["linear"],
    "LinearAttention": ["linear", "linear"],
    "Mamba2 without a window": ["linear"],
    "S6": ["linear"],
    "DeltaNet": ["recurrent"],
}


@pytest.mark.parametrize("form", STATES)
def test_the_state_is_linear_and_the_products_with_kernels_are_batched(form):
    case = EVERY[form]
    explanation = rs.explain(case.cell, *case.arguments())
    states = STATES[form]
    assert [leaf.kind for leaf in explanation.carry.values()][: len(states)] == states
    products = [equation.kind for equation in explanation.equations if equation.operation == "dot_general"]
    # DeltaNet reads its state in the loop.
    assert products.count("recurrent") == (form == "DeltaNet")
    assert set(products) <= {"parallel", "recurrent"}


def test_the_heads_of_retnet_forget_at_their_own_fixed_rates():
    case = Case(cells.RetNet(4, heads=4, key_size=1, value_size=2))
    params, (state,), xs = case.arguments(length=1)
    (after,), _ = jax.jit(case.cell)(params, (state,), 0 * xs[0])
    rates = 1 - np.array([1 / 32, 1 / 64, 1 / 128, 1 / 256])
    np.testing.assert_allclose(after, rates[:, None, None] * state, rtol=1e-6)


def test_linear_attention_divides_by_no_zero_where_keys_and_queries_are_far_below_zero():
    cell = cells.LinearAttention(2, epsilon=1e-30)
    params = {
        "kernel": jnp.zeros((3, 6)),
        "bias": jnp.array([-18.0, -18.0, -18.0, -18.0, 3.0, 5.0]),
        "output_kernel": jnp.eye(2),
        "output_bias": jnp.zeros(2),
    }
    x = jnp.ones((1, 3))

    def run(params):
        return cell(params, cell.initial_carry(x), x)[1]

    np.testing.assert_allclose(jax.jit(run)(params), [[3.0, 5.0]], rtol=1e-5)
    gradients = jax.jit(jax.grad(lambda params: run(params).sum()))(params)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_deltanet_replaces_the_value_of_a_key():
    cell = cells.DeltaNet(3)
    # beta = 1; k and v do not depend on x, so a second step changes nothing.
    kernel = jnp.array([[1.0, -2.0, 3.0, 2.0, 1.0, 3.0, 4.0, 5.0, 6.0, 50.0]])
    params = {"kernel": kernel, "norm_scale": jnp.ones(3), "output_kernel": jnp.eye(3)}
    x = jnp.ones((1, 1))
    step = jax.jit(cell)
    once, _ = step(params, cell.initial_carry(x), x)
    twice, _ = step(params, once, x)
    assert np.abs(once[0]).max() > 1
    np.testing.assert_allclose(twice[0], once[0], rtol=1e-5)


def test_initial_step_sizes_and_decays_are_those_of_the_papers():
    make = jax.jit(lambda cell, size: cell.init(jax.random.key(0), size), static_argnums=(0, 1))
    s6 = make(cells.S6(512, state_size=3, step_range=(0.01, 0.02)), 512)
    mamba2 = make(cells.Mamba2(512, heads=256, key_size=2, decay_range=(2.0, 3.0)), 3)
    for bias, (low, high) in ((s6["step_bias"], (0.01, 0.02)), (mamba2["step_bias"], (0.001, 0.1))):
        logs = np.log(np.log1p(np.exp(bias)))
        assert np.log(low) - 1e-3 < logs.min() < logs.max() < np.log(high) + 1e-3
        assert abs(logs.mean() - np.log(low * high) / 2) < 0.1 * np.log(high / low)
    np.testing.assert_allclose(np.exp(s6["log_decay"]), np.tile([1.0, 2.0, 3.0], (512, 1)), rtol=1e-6)
    assert s6["kernel"].shape == (512, 32 + 6)
    assert 0.16 < np.abs(s6["step_kernel"]).max() <= 32**-0.5
    rates = np.exp(mamba2["log_decay"])
    assert 2 < rates.min() < 2.1 < 2.9 < rates.max() < 3
    assert all(np.all(params["skip"] == 1) for params in (s6, mamba2))


def test_sizes_are_those_of_the_papers_unless_they_are_given():
    x = jnp.ones((2, 3))
    for cell, keys, values in (
        (cells.GLA(8, heads=2), 2, 4),
        (cells.RetNet(8, heads=2), 4, 8),
        (cells.LinearAttention(8, heads=2), 4, 4),
        (cells.DeltaNet(8, heads=2), 4, 4),
        (cells.Mamba2(8, heads=2), 128, 8),
        (cells.GLA(8, heads=2, key_size=5, value_size=6), 5, 6),
    ):
        assert cell.initial_carry(x)[0].shape == (2, 2, keys, values)
        assert cell.output_size == 8


REFUSED = {
    r"^GLA: `heads` must divide `hidden_size`, 4; got 3\.": lambda: cells.GLA(4, heads=3),
    r"^RetNet: `key_size` must be an int of at least 1; got 0\.": lambda: cells.RetNet(4, key_size=0),
    r"^GLA: `decay_rank` must be an int of at least 1; got 0\.": lambda: cells.GLA(4, decay_rank=0),
    r"^GLA: `temperature` must be a number above 0; got -1\.0\.": lambda: cells.GLA(4, temperature=-1.0),
    r"^RetNet: `epsilon` must be a number above 0; got 0\.0\.": lambda: cells.RetNet(4, epsilon=0.0),
    r"^Mamba2: `groups` must divide `heads`, 4; got 3\.": lambda: cells.Mamba2(4, heads=4, groups=3),
    r"^Mamba2: `window` must be an int of at least 1; got 0\.": lambda: cells.Mamba2(4, window=0),
    r"^Mamba2: `step_range` must be a tuple of two ascending numbers above 0; got \(0\.2, 0\.1\)\.": lambda: (
        cells.Mamba2(4, step_range=(0.2, 0.1))
    ),
    r"^S6: `discretization` must be one of 'zoh', 'euler'; got 'eular'\. Did you mean 'euler'": lambda: cells.S6(
        4, discretization="eular"
    ),
    r"^S6: `state_size` must be an int of at least 1; got 0\.": lambda: cells.S6(4, state_size=0),
    r"^S6: the input must have as many features as `hidden_size`, 4; got 3\.": lambda: cells.S6(4).init(
        jax.random.key(0), 3
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_do_not_fit_are_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_parameters_of_another_form_are_refused():
    x = jnp.ones((2, 3))

    def step(cell, other):
        params = jax.eval_shape(lambda: other.init(jax.random.key(0), 3))
        return jax.eval_shape(cell, params, cell.initial_carry(x), x)

    with pytest.raises(ValueError, match="made with use_bias=False, and the cell has True"):
        step(cells.LinearAttention(4), cells.LinearAttention(4, use_bias=False))
    with pytest.raises(ValueError, match=r"GLA: the parameters of 4 units must be 'kernel' \(D, 28\)"):
        step(cells.GLA(4), cells.GLA(4, decay_rank=8))
