"""sLSTM and mLSTM against the equations of the xLSTM paper without a stabilizer, and far outside their range."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import block_diag

import rnnscan as rs
from rnnscan.cells.mlstm import MLSTM
from rnnscan.cells.slstm import SLSTM
from tiers import variants
from zoo.case import Case, assert_trees_close
from zoo.xlstm import ScalarCase


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def forget_gate_of(cell):
    return sigmoid if cell.forget_gate == "sigmoid" else jnp.exp


def paper_slstm(cell, params, carry, xs):
    """Equations 8 to 14, with the gates as they are and dense recurrent kernels of mostly zeros."""
    h, c, n, m = carry
    c, n = c * jnp.exp(m), n * jnp.exp(m)
    head = cell.hidden_size // cell.heads
    bias = jnp.split(params.get("bias", jnp.zeros(4 * cell.hidden_size)), 4)
    kernels = jnp.split(params["kernel"], 4, axis=1)
    recurrent = [block_diag(*params["recurrent_kernel"][:, :, g * head : (g + 1) * head]) for g in range(4)]

    def step(carry, x):
        h, c, n = carry
        i, f, z, o = (x @ w + h @ r + b for w, r, b in zip(kernels, recurrent, bias, strict=True))
        i, f, z, o = jnp.exp(i), forget_gate_of(cell)(f), jnp.tanh(z), sigmoid(o)
        c, n = f * c + i * z, f * n + i
        h = o * c / n
        return (h, c, n), h

    return jax.lax.scan(step, (h, c, n), xs)


def paper_mlstm(cell, params, carry, xs):
    """Equations 19 to 27, head after head."""
    memories, normalizers, m = carry
    memories, normalizers = memories * jnp.exp(m)[..., None, None], normalizers * jnp.exp(m)[..., None]
    heads, d = cell.heads, cell.hidden_size // cell.heads
    bias = params.get("bias", jnp.zeros(4 * cell.hidden_size)).reshape(4, heads, d)
    gate_bias = params.get("gate_bias", jnp.zeros(2 * heads)).reshape(2, heads)
    kernel = params["kernel"].reshape(-1, 4, heads, d)
    gate_kernel = params["gate_kernel"].reshape(-1, 2, heads)
    of_heads, all_ys = [], []
    for head in range(heads):

        def step(carry, x, head=head):
            memory, n = carry
            q = x @ kernel[:, 0, head] + bias[0, head]
            k = x @ kernel[:, 1, head] / jnp.sqrt(d) + bias[1, head]
            v = x @ kernel[:, 2, head] + bias[2, head]
            o = sigmoid(x @ kernel[:, 3, head] + bias[3, head])
            i = jnp.exp(x @ gate_kernel[:, 0, head] + gate_bias[0, head])[:, None]
            f = forget_gate_of(cell)(x @ gate_kernel[:, 1, head] + gate_bias[1, head])[:, None]
            memory = f[..., None] * memory + i[..., None] * jnp.einsum("nv,nk->nvk", v, k)
            n = f * n + i * k
            length = jnp.maximum(jnp.abs(jnp.einsum("nk,nk->n", n, q)), 1)
            return (memory, n), o * jnp.einsum("nvk,nk->nv", memory, q) / length[:, None]

        state, ys = jax.lax.scan(step, (memories[:, head], normalizers[:, head]), xs)
        of_heads.append(state)
        all_ys.append(ys)
    memories, normalizers = (jnp.stack(parts, axis=1) for parts in zip(*of_heads, strict=True))
    return (memories, normalizers), jnp.concatenate(all_ys, axis=-1)


def without_stabilizer(outputs):
    """The carry as the equations without a stabilizer have it."""
    (*hidden, state, normalizer, m), ys = outputs
    scale = jnp.exp(m)
    return (*hidden, like(scale, state) * state, like(scale, normalizer) * normalizer), ys


def like(scale, part):
    return scale.reshape(scale.shape + (1,) * (part.ndim - scale.ndim))


CASES = {
    "sLSTM": (ScalarCase(SLSTM(4)), paper_slstm),
    "sLSTM heads": (ScalarCase(SLSTM(6, heads=3, use_bias=False)), paper_slstm),
    "sLSTM exp": (ScalarCase(SLSTM(4, heads=2, forget_gate="exp")), paper_slstm),
    "mLSTM": (Case(MLSTM(4)), paper_mlstm),
    "mLSTM heads": (Case(MLSTM(6, heads=2, use_bias=False)), paper_mlstm),
    "mLSTM exp": (Case(MLSTM(4, heads=2, forget_gate="exp")), paper_mlstm),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("start", variants(["zero", "given"], ["given"]))
@pytest.mark.parametrize(("case", "paper"), variants(CASES, ["mLSTM exp"]))
def test_values_and_gradients_are_those_of_the_equations_without_a_stabilizer(case, paper, start):
    params, carry, xs = case.arguments(length=4)
    # Some |n . q| are above the bound of 1 and some below it.
    xs = 2 * xs
    if start == "zero":
        carry = case.cell.initial_carry(xs[0])
    expected = jax.jit(lambda *a: case.gradients(lambda *a: paper(case.cell, *a), *a))(params, carry, xs)
    actual = jax.jit(lambda *a: case.gradients(lambda *a: without_stabilizer(case.scan(*a)), *a))(params, carry, xs)
    assert_trees_close(actual, expected, tolerance=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("case", "paper"), variants(CASES, ["sLSTM heads", "mLSTM exp"]))
def test_the_scale_of_the_state_does_not_show(case, paper):
    params, (*hidden, state, normalizer, m), xs = case.arguments(length=3)
    shift = 3 * jnp.cos(jnp.arange(m.size)).reshape(m.shape)
    scale = jnp.exp(-shift)
    shifted = (*hidden, state * like(scale, state), normalizer * like(scale, normalizer), m + shift)
    assert_trees_close(
        without_stabilizer(case.jitted(params, shifted, xs)),
        without_stabilizer(case.jitted(params, (*hidden, state, normalizer, m), xs)),
        tolerance=1e-9,
    )


def biased(case, input_bias, forget_bias):
    """Arguments with these biases of the two exponential gates, from an empty state."""
    params, _, xs = case.arguments(length=6)
    which = "bias" if isinstance(case.cell, SLSTM) else "gate_bias"
    gates = 4 if which == "bias" else 2
    size = params[which].size // gates
    small = params[which].at[: 2 * size].set(0)
    params[which] = small.at[:size].add(input_bias).at[size : 2 * size].add(forget_bias)
    return params, case.cell.initial_carry(xs[0]), xs


@cache
def gradients_of(case):
    """Compiled once for all biases."""
    return jax.jit(lambda *a: case.gradients(case.scan, *a))


LARGE = {name: case for name, (case, _) in CASES.items() if "heads" not in name}


@pytest.mark.parametrize("forget_bias", [-1e3, 0.0, 1e3])
@pytest.mark.parametrize("input_bias", [-1e3, 0.0, 1e3])
@pytest.mark.parametrize("case", variants(LARGE, ["sLSTM exp", "mLSTM exp"]))
def test_values_and_gradients_stay_finite_far_outside_the_range_of_exp(case, input_bias, forget_bias):
    arguments = biased(case, input_bias, forget_bias)
    outputs, gradients = gradients_of(case)(*arguments)
    assert outputs[1].dtype == jnp.float32
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((outputs, gradients)))


@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_gates_that_swing_far_stay_finite(case):
    params, carry, xs = biased(case, 0.0, 0.0)
    kernel = "kernel" if "recurrent_kernel" in params else "gate_kernel"
    params[kernel] = params[kernel] * 3e3
    outputs, gradients = gradients_of(case)(params, carry, xs)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((outputs, gradients)))


@pytest.mark.parametrize("input_bias", [-1e3, -50.0, 1e3])
def test_an_slstm_weighs_its_inputs_by_their_ratios_alone(input_bias):
    case = ScalarCase(SLSTM(4))
    _, expected = case.jitted(*biased(case, 0.0, 1.0))
    _, ys = case.jitted(*biased(case, input_bias, 1.0))
    # A preactivation of 1000 is rounded to 6e-5.
    np.testing.assert_allclose(ys, expected, atol=1e-3)


def test_an_mlstm_that_writes_nothing_reads_nothing_and_one_that_writes_much_reads_a_mean():
    case = Case(MLSTM(4, heads=2))
    _, nothing = case.jitted(*biased(case, -1e3, 1.0))
    assert np.abs(nothing).max() < 1e-12
    _, expected = case.jitted(*biased(case, 60.0, 1.0))
    _, ys = case.jitted(*biased(case, 1e3, 1.0))
    np.testing.assert_allclose(ys, expected, rtol=1e-2, atol=1e-3)
    assert np.abs(expected).max() > 0.1


def test_a_query_that_finds_nothing_reads_nothing():
    cell = MLSTM(2)
    params = {
        "kernel": jnp.zeros((3, 8)),
        "bias": jnp.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
        "gate_kernel": jnp.zeros((3, 2)),
        "gate_bias": jnp.array([500.0, 0.0]),
    }
    x = jnp.ones((1, 3))

    def run(params):
        return cell(params, cell.initial_carry(x), x)[1]

    np.testing.assert_array_equal(jax.jit(run)(params), jnp.zeros((1, 2)))
    gradients = jax.jit(jax.grad(lambda params: run(params).sum()))(params)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_the_memory_of_an_mlstm_is_linear_given_the_stabilizer():
    cell = MLSTM(4, heads=2)
    params, carry, xs = Case(cell).arguments()
    explanation = rs.explain(cell, params, carry, xs)
    # The stabilizer, max(f + m, i), is a shift that is clipped, which counts as linear.
    assert [leaf.kind for leaf in explanation.carry.values()] == ["linear", "linear", "linear"]
    assert len({leaf.loop for leaf in explanation.carry.values()}) == 3
    assert {e.kind for e in explanation.equations if e.operation == "dot_general"} == {"parallel"}
    assert {"add", "max"} <= {e.operation for e in explanation.equations if e.kind == "linear"}
    assert not any(e.kind in ("elementwise", "recurrent") for e in explanation.equations)


def test_new_biases_of_the_forget_gates_are_evenly_spaced():
    slstm = SLSTM(6, heads=2, forget_bias=(1.0, 3.0)).init(jax.random.key(0), 3)
    np.testing.assert_allclose(slstm["bias"], [0] * 6 + [1, 2, 3] * 2 + [0] * 12)
    mlstm = MLSTM(6, heads=3, forget_bias=(1.0, 3.0)).init(jax.random.key(0), 3)
    np.testing.assert_allclose(mlstm["gate_bias"], [0, 0, 0, 1, 2, 3])
    assert not mlstm["bias"].any()


@pytest.mark.parametrize("cell_type", [SLSTM, MLSTM])
def test_what_does_not_fit_is_refused(cell_type):
    title = cell_type.__name__
    with pytest.raises(ValueError, match=rf"^{title}: `heads` must divide `hidden_size`, 4; got 3\."):
        cell_type(4, heads=3)
    with pytest.raises(ValueError, match=rf'^{title}: `forget_gate` must be "sigmoid" or "exp"; got \'tanh\'\.'):
        cell_type(4, forget_gate="tanh")
    cell, x = cell_type(4, heads=2), jnp.ones((2, 3))
    with pytest.raises(ValueError, match=rf"^{title}: the parameters of 4 units must be"):
        cell(cell_type(4).init(jax.random.key(0), 3), cell.initial_carry(x), x)


@pytest.mark.bad_input
@pytest.mark.parametrize("cell_type", [SLSTM, MLSTM])
def test_a_forget_bias_that_is_no_pair_is_refused(cell_type):
    with pytest.raises(
        ValueError, match=rf"^{cell_type.__name__}: `forget_bias` must be a tuple of two numbers; got 1"
    ):
        cell_type(4, forget_bias=1.0)


def test_an_mlstm_that_is_given_q_k_and_v_is_one_that_computes_them():
    cell, given = MLSTM(4, heads=2), MLSTM(4, heads=2, projections=False)
    params, carry, xs = Case(cell, features=(12,)).arguments()
    # The kernel passes on x, with an open output gate; the bias of k is 0, because the two scale it differently.
    scaled = {"kernel": jnp.eye(12, 16), "bias": jnp.zeros(16).at[12:].set(100.0)}
    _, expected = rs.scan(cell, params | scaled, carry, xs)
    _, ys = rs.scan(given, {name: params[name] for name in ("gate_kernel", "gate_bias")}, carry, xs)
    np.testing.assert_allclose(ys, expected, rtol=1e-5, atol=1e-6)


def test_options_of_an_mlstm_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"^MLSTM: `epsilon` must be a number of at least 0; got -1\.0\."):
        MLSTM(4, epsilon=-1.0)
    cell = MLSTM(4, projections=False)
    with pytest.raises(ValueError, match=r"^MLSTM: the input must be q, k and v side by side, 12 features; got 4\."):
        cell.init(jax.random.key(0), 4)
    with pytest.raises(ValueError, match="made with projections=True, and the cell has False"):
        cell(MLSTM(4).init(jax.random.key(0), 12), cell.initial_carry(jnp.ones((2, 12))), jnp.ones((2, 12)))
