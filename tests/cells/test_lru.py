"""LRU against a sum over all that it has seen, and what is linear in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.cells.lru import LRU
from tiers import variants
from zoo.case import Case, assert_trees_close


def explicit_sum(params, carry, xs):
    """h_t = lambda^(t+1) h_(-1) + sum_k lambda^(t-k) gamma B x_k, and y_t = Re(C h_t) + D x_t."""
    (before,) = carry
    decay = jnp.exp(-jnp.exp(params["log_decay"]))
    phase = jnp.exp(params["log_phase"])
    eigenvalue = decay * (jnp.cos(phase) + 1j * jnp.sin(phase))
    into = (params["input_kernel_real"] + 1j * params["input_kernel_imag"]) * jnp.exp(params["log_scale"])
    out = params["output_kernel_real"] + 1j * params["output_kernel_imag"]
    states, ys = [], []
    for time in range(xs.shape[0]):
        state = eigenvalue ** (time + 1) * before
        for past in range(time + 1):
            state += eigenvalue ** (time - past) * (xs[past].astype(complex) @ into)
        states.append(state)
        ys.append((state @ out).real + xs[time] @ params["skip_kernel"])
    return (states[-1],), jnp.stack(ys)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cell", variants([LRU(4), LRU(2, state_size=5)], [LRU(2, state_size=5)]), ids=repr)
def test_values_and_gradients_are_those_of_the_explicit_sum(cell):
    case = Case(cell)
    arguments = case.arguments(length=5)
    expected = jax.jit(lambda *a: case.gradients(explicit_sum, *a))(*arguments)
    actual = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    assert_trees_close(actual, expected, tolerance=1e-9)


def test_the_state_is_linear_and_nothing_is_recurrent():
    cell = LRU(4)
    params, carry, xs = Case(cell).arguments()
    explanation = rs.explain(cell, params, carry, xs)
    assert explanation.carry["[0]"].kind == "linear"
    assert explanation.kinds["recurrent"] == 0


def test_the_state_is_complex_in_every_dtype():
    x = jnp.ones((2, 3), jnp.bfloat16)
    for cell in (LRU(4), LRU(4, dtype=jnp.bfloat16), LRU(4, carry_dtype=jnp.bfloat16)):
        carry = cell.initial_carry(x)
        (state,), y = cell(cell.init(jax.random.key(0), 3), carry, x)
        assert carry[0].dtype == state.dtype == jnp.complex64
        assert y.dtype == (jnp.float32 if cell.dtype is None else jnp.bfloat16)


def test_a_slow_decay_keeps_its_digits_in_bfloat16():
    params = LRU(1).init(jax.random.key(0), 1) | {"log_decay": jnp.array([-7.003]), "log_phase": jnp.array([1.303])}
    (state,), _ = LRU(1, dtype=jnp.bfloat16)(params, (jnp.ones((1, 1), jnp.complex64),), jnp.zeros((1, 1)))
    np.testing.assert_allclose(state, [[np.exp(-np.exp(-7.003) + 1j * np.exp(1.303))]], rtol=1e-6)


def test_new_eigenvalues_lie_on_their_ring():
    cell = LRU(2, state_size=4096, r_min=0.5, r_max=0.8, max_phase=1.0)
    params = cell.init(jax.random.key(0), 64)
    magnitude, phase = np.exp(-np.exp(params["log_decay"])), np.exp(params["log_phase"])
    assert magnitude.min() >= 0.5 - 1e-5
    assert magnitude.max() <= 0.8 + 1e-5
    assert phase.max() <= 1 + 1e-5
    # Uniform on the area, so the squares are uniform.
    assert abs((magnitude**2).mean() - (0.25 + 0.64) / 2) < 0.01
    assert abs(phase.mean() - 0.5) < 0.02
    np.testing.assert_allclose(np.exp(params["log_scale"]), np.sqrt(1 - magnitude**2), rtol=1e-5)
    assert 0.95 < float(params["input_kernel_real"].std()) * np.sqrt(2 * 64) < 1.05
    assert 0.95 < float(params["output_kernel_imag"].std()) * 64 < 1.05


def test_a_skip_vector_has_no_matrix_product_and_leaves_the_other_parameters_as_they_are():
    matrix, vector = (LRU(4, skip=skip).init(jax.random.key(0), 4) for skip in ("matrix", "vector"))
    shared = matrix.keys() & vector.keys()
    assert shared == matrix.keys() - {"skip_kernel"} == vector.keys() - {"skip"}
    assert all(np.array_equal(matrix[name], vector[name]) for name in shared)
    assert vector["skip"].shape == (4,)
    assert len(np.unique(vector["skip"])) == 4
    products = {}
    for skip in ("matrix", "vector"):
        cell = LRU(4, skip=skip)
        explanation = rs.explain(cell, *Case(cell, features=(4,)).arguments())
        products[skip] = sum(equation.operation == "dot_general" for equation in explanation.equations)
    assert products["vector"] == products["matrix"] - 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"^LRU: `r_min` and `r_max` must be two ascending numbers .* 0\.9 and 0\.5"):
        LRU(4, r_min=0.9, r_max=0.5)
    with pytest.raises(ValueError, match=r"^LRU: `max_phase` must be a number above 0; got 0\."):
        LRU(4, max_phase=0.0)
    with pytest.raises(ValueError, match=r"^LRU: `state_size` must be an int of at least 1; got 0\."):
        LRU(4, state_size=0)
    with pytest.raises(ValueError, match=r"^LRU: `skip` must be one of 'matrix', 'vector'; got 'none'\."):
        LRU(4, skip="none")
    with pytest.raises(ValueError, match=r"^LRU: the input must have as many features as `hidden_size`, 4; got 3\."):
        LRU(4, skip="vector").init(jax.random.key(0), 3)
    with pytest.raises(ValueError, match=r"They were made with skip='matrix', and the cell has 'vector'\."):
        LRU(4, skip="vector")(LRU(4).init(jax.random.key(0), 4), (jnp.ones((2, 4), complex),), jnp.ones((2, 4)))
    cell, x = LRU(4), jnp.ones((2, 3))
    with pytest.raises(TypeError, match=r"^LRU: state in the carry must be of a complex dtype"):
        cell(cell.init(jax.random.key(0), 3), (jnp.ones((2, 4)),), x)
