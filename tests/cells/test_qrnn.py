"""QRNN against a convolution over the whole sequence and the pooling of its paper, and what is linear in it."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.cells.qrnn import QRNN
from tiers import variants
from zoo.case import Case, assert_trees_close


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def paper(params, carry, xs, *, pooling, units=4):
    """A masked convolution makes Z, F, O and I of all steps; then the pooling runs over time."""
    c, before = carry
    taps = params["kernel"]
    padded = jnp.concatenate([before.swapaxes(0, 1), xs])
    window = taps.shape[0]
    convolved = sum(
        jnp.einsum("tnd,dc->tnc", padded[start : start + xs.shape[0]], taps[start]) for start in range(window)
    )
    convolved += params.get("bias", jnp.zeros(taps.shape[-1]))
    z, f, o, i = (convolved[..., start : start + units] for start in (0, units, 2 * units, 3 * units))
    z, f, o, i = jnp.tanh(z), sigmoid(f), sigmoid(o), sigmoid(i)
    hs = []
    for step in range(xs.shape[0]):
        write = i[step] if pooling == "ifo" else 1 - f[step]
        c = f[step] * c + write * z[step]
        hs.append(c if pooling == "f" else o[step] * c)
    return (c, padded[padded.shape[0] - window + 1 :].swapaxes(0, 1)), jnp.stack(hs)


CELLS = [
    QRNN(4),
    QRNN(4, pooling="f", window=3),
    QRNN(4, pooling="ifo", window=2, use_bias=False),
    QRNN(4, pooling="ifo", window=4),
    QRNN(4, pooling="f", window=1),
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cell", variants(CELLS, [CELLS[0], CELLS[2]]), ids=repr)
def test_values_and_gradients_are_those_of_the_paper(cell):
    case = Case(cell)
    arguments = case.arguments(length=5)
    run = lambda *a: paper(*a, pooling=cell.pooling)  # noqa: E731
    expected = jax.jit(lambda *a: case.gradients(run, *a))(*arguments)
    actual = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    assert_trees_close(actual, expected, tolerance=1e-9)


@pytest.mark.parametrize("cell", CELLS, ids=repr)
def test_the_state_is_linear_and_products_wait_for_no_step(cell):
    params, carry, xs = Case(cell).arguments()
    explanation = rs.explain(cell, params, carry, xs)
    assert explanation.carry["[0]"].kind == "linear"
    assert [e.kind for e in explanation.equations if e.operation == "dot_general"] == ["parallel"]


def test_only_without_an_output_gate_is_the_output_a_part_of_the_carry():
    assert QRNN(4, pooling="f").output_part == 0
    assert QRNN(4).output_part is None
    assert QRNN(4, pooling="ifo").output_part is None


def test_a_new_kernel_has_the_variance_of_its_whole_window():
    kernel = QRNN(64, window=4).init(jax.random.key(0), 16)["kernel"]
    assert kernel.shape == (4, 16, 192)
    assert 0.9 < float(kernel.std()) * 8 < 1.1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"^QRNN: `pooling` must be one of .*; got 'fio'\."):
        QRNN(4, pooling="fio")
    with pytest.raises(ValueError, match=r"^QRNN: `window` must be an int of at least 1; got 0\."):
        QRNN(4, window=0)
    cell, x = QRNN(4, window=3), jnp.ones((2, 3))
    params, (state, inputs) = cell.init(jax.random.key(0), 3), cell.initial_carry(x)
    with pytest.raises(ValueError, match=r"QRNN: inputs in the carry must be \(2, 2, 3\)"):
        cell(params, (state, inputs[:, :1]), x)
    with pytest.raises(ValueError, match=r"QRNN: the parameters of 4 units must be 'kernel' \(3, D, 12\)"):
        cell(QRNN(4).init(jax.random.key(0), 3), (state, inputs), x)
