"""Loops that Newton's method solves over many steps at once equal the loops step by step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from newton_cells import CELLS, UNITS, arguments_of, one_leaf
from rnnscan import cells
from rnnscan.engine.loops.trust_region import gains
from rnnscan.newton import Newton
from slow_reference import assert_close
from tiers import variants
from zoo.case import Case


# What is compiled runs once, so it should compile quickly.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
compiled = partial(jax.jit, compiler_options=QUICKLY)
NEWTON = Newton(chunk=8)
ROWS, STEPS = 3, 21
LENGTHS = jnp.array([STEPS, 9, 0])
RESET = jnp.zeros((STEPS, ROWS), bool).at[5, 0].set(True).at[11, 1].set(True)
OPTIONS = {
    "plain": {},
    "reverse, lengths": {"reverse": True, "seq_lengths": LENGTHS},
    "resets": {"reset": RESET},
    "truncated": {"truncate": 5},
    "held": {"seq_lengths": LENGTHS, "padding": "hold"},
    "recompute": {"memory": rs.Memory(recompute="all")},
    "segments": {"memory": rs.Memory(segment=8)},
    "nested segments": {"memory": rs.Memory(segment=(10, 3)), "reverse": True},
    "unrolled": {"unroll": 2},
}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def results(cell, arguments, **options):
    """The final carry, ys and the gradients for all floats."""

    def loss(*arguments):
        found = rs.scan(cell, *arguments, **options)
        return Case.loss(found), found

    return compiled(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True, allow_int=True))(*arguments)


def assert_equal(cell, arguments, newton=NEWTON, tolerance=1e-10, **options):
    plain = dict(options) | {"memory": None}
    found, expected = results(cell, arguments, parallel=newton, **options), results(cell, arguments, **plain)
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if leaf.dtype != jax.dtypes.float0:
            scale = float(np.nanmax(np.abs(wanted), initial=0, where=np.isfinite(wanted))) or 1
            np.testing.assert_allclose(leaf, wanted, rtol=0, atol=tolerance * scale)


EVERY = {f"{cell}, {option}": (cell, option) for cell in CELLS for option in OPTIONS}
# The reversed one has padding, the truncated one a Jacobian that derivatives do not see.
QUICK = ["one leaf, reverse, lengths", "two leaves, truncated", "three kinds, plain"]


@pytest.mark.core("recurrences in parallel")
@pytest.mark.parametrize(("name", "option"), variants(EVERY, QUICK))
def test_results_and_gradients_equal_the_loop(name, option):
    options = dict(OPTIONS[option])
    arguments = arguments_of(name)
    if "reset" in options:
        options["reset_to"] = jax.tree.map(lambda leaf: leaf / 2 if leaf.ndim else leaf, arguments[1])
        if name == "three kinds":
            pytest.skip("a counter has no rows to reset")
    if name == "three kinds" and "seq_lengths" in options:
        pytest.skip("a counter has no rows to hold")
    assert_equal(CELLS[name][0], arguments, **options)


@pytest.mark.core("recurrences in parallel")
@pytest.mark.parametrize("steps", variants([0, 1, 2, 7, 8, 9, 100, 5000], [0, 1]))
def test_every_length_works(steps):
    newton = Newton() if steps > 100 else NEWTON
    assert_equal(one_leaf, arguments_of("one leaf", steps=steps), newton)


@pytest.mark.parametrize("name", variants(["one leaf", "two leaves"], ["one leaf"]))
def test_a_chaotic_cell_runs_step_by_step(name):
    arguments = arguments_of(name, steps=120, gain=30)
    found = compiled(lambda *given: rs.scan(CELLS[name][0], *given, parallel=Newton()))(*arguments)
    assert_close(found, compiled(partial(rs.scan, CELLS[name][0]))(*arguments), tolerance=1e-10)


@pytest.mark.core("recurrences in parallel")
def test_nan_and_infinity_are_those_of_the_loop():
    params, carry, xs = arguments_of("one leaf")
    xs = xs.at[7, 0, 0].set(jnp.nan)
    params["recurrent"] = params["recurrent"].at[2, 1].set(jnp.inf)
    found, expected = (
        compiled(lambda *given, own=own: rs.scan(one_leaf, *given, parallel=own))(params, carry, xs)
        for own in (NEWTON, None)
    )
    assert np.isnan(expected[1]).any()
    assert np.isfinite(expected[1]).any()
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), found, expected)


def test_products_of_jacobians_that_overflow_leave_the_gradient_finite():
    def cell(params, carry, x):
        hidden = jnp.where(carry > 0.5, 0.0, jnp.tanh(params * carry)) + x
        return hidden, hidden

    # The Jacobian is 1e10 at each of the last steps, which the loss does not read.
    arguments = (jnp.array(1e10), jnp.zeros(3), jnp.zeros((100, 3)))

    def gradient(newton):
        def loss(params, carry, xs):
            return (rs.scan(cell, params, carry, xs, parallel=newton)[1][:5] * 1e-30).sum()

        return compiled(jax.grad(loss, argnums=(1, 2)))(*arguments)

    found, expected = gradient(Newton()), gradient(None)
    assert np.isfinite(expected[1]).all()
    assert_close(found, expected, tolerance=1e-12)


def test_float32_is_as_exact_as_the_loop():
    exact = arguments_of("two leaves", steps=200)
    rough = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), exact)
    expected = rs.scan(CELLS["two leaves"][0], *exact)[1]
    with jax.enable_x64(False):
        found, plain = (
            compiled(lambda *given, own=own: rs.scan(CELLS["two leaves"][0], *given, parallel=own)[1])(*rough)
            for own in (Newton(), None)
        )
    assert found.dtype == jnp.float32
    assert np.abs(found - expected).max() < 4 * np.abs(plain - expected).max()


def test_second_derivatives_are_those_of_the_loop():
    params, carry, xs = arguments_of("one leaf", steps=6, rows=2)

    def value(newton, scale):
        scaled = jax.tree.map(lambda leaf: scale * leaf, carry)
        return Case.loss(rs.scan(one_leaf, params, scaled, scale * xs, parallel=newton))

    found, expected = (compiled(jax.hessian(partial(value, own)))(1.5) for own in (Newton(chunk=4), None))
    assert_close(found, expected, tolerance=1e-9)


DENSE = {
    "LSTM": cells.LSTM(4),
    "GRU": cells.GRU(4),
    "RNN": cells.RNN(4),
    "LayerNormLSTM": cells.LayerNormLSTM(4),
    "SLSTM": cells.SLSTM(4, heads=2),
    "two layers": rs.stack(cells.GRU(4), cells.ParaGRU(4)),
}


@pytest.mark.parametrize("name", variants(list(DENSE), ["RNN"]))
def test_dense_loops_by_the_diagonal_of_their_jacobian_equal_the_loop(name):
    arguments = Case(DENSE[name]).arguments(length=12)
    newton = Newton(jacobian="diagonal", chunk=6, damping=0.1)
    assert_equal(DENSE[name], arguments, newton, seq_lengths=jnp.array([12, 5, 0]))


def test_the_diagonal_of_a_dense_loop_converges_in_few_iterations():
    arguments = Case(cells.GRU(4)).arguments(length=64)
    counts = rs.newton_iterations(cells.GRU(4), *arguments, parallel=Newton(jacobian="diagonal", max_iterations=40))
    assert counts.chunks_step_by_step == 0


def oscillators(params, carry, x):
    """Duffing oscillators, whose cubic force throws a wrong guess far away. With params their places are coupled."""
    place, speed = carry
    coupled = 0.0 if params is None else place @ params
    speed = speed + 0.1 * (place - place**3 - 0.3 * speed + x + coupled)
    place = place + 0.1 * speed
    return (place, speed), place


@pytest.mark.parametrize("jacobian", variants(["auto", "diagonal"], ["auto"]))
def test_damping_solves_what_newtons_method_throws_away(jacobian):
    random = np.random.default_rng(0)
    params = None if jacobian == "auto" else jnp.asarray(0.1 * random.normal(size=(UNITS, UNITS)))
    carry = jnp.full((2, UNITS), 0.5), jnp.zeros((2, UNITS))
    arguments = params, carry, jnp.asarray(0.3 * random.normal(size=(64, 2, UNITS)))
    most = 30 if jacobian == "auto" else 60

    def counts(damping):
        newton = Newton(jacobian=jacobian, max_iterations=most, damping=damping)
        return rs.newton_iterations(oscillators, *arguments, parallel=newton)

    assert counts(0.0).chunks_step_by_step == 1
    assert counts(0.01).chunks_step_by_step == 0
    newton = Newton(jacobian=jacobian, max_iterations=most, damping=0.01)
    found, expected = (
        compiled(partial(rs.scan, oscillators, parallel=own, **how))(*arguments)
        for own, how in ((newton, {}), (None, {"memory": None}))
    )
    assert_close(found, expected, tolerance=1e-9)


def test_a_trust_region_holds_back_what_expands_only():
    random = np.random.default_rng(0)
    matrix = jnp.asarray(random.normal(size=(5, 3, 3, 2)))
    strength = jnp.array([0.0, 0.5])
    padded = jnp.zeros_like(matrix).at[:, :2, :2].set(matrix[:, :2, :2])

    @compiled
    def all_gains():
        small, wanted = (gains(own, strength, reverse=True)[:, :2, :2] for own in (matrix[:, :2, :2], padded))
        return gains(matrix, strength, reverse=False), small, wanted

    found, small, wanted = all_gains()
    np.testing.assert_allclose(small, wanted, atol=1e-12)
    variance = np.zeros((3, 3))
    for step in range(5):
        predicted = matrix[step, ..., 1] @ variance @ matrix[step, ..., 1].T + np.eye(3)
        gain = np.linalg.inv(np.eye(3) + 0.5 * predicted)
        np.testing.assert_allclose(found[step, ..., 1], gain, atol=1e-12)
        np.testing.assert_array_equal(found[step, ..., 0], np.eye(3))
        variance = gain @ predicted


@pytest.mark.slow
def test_an_slstm_with_heads_of_one_unit_is_elementwise():
    cell = cells.SLSTM(4, heads=4)
    arguments = Case(cell).arguments(length=24)
    newton = Newton(damping=0.01, chunk=12)
    assert_equal(cell, arguments, newton)
    assert rs.newton_iterations(cell, *arguments, parallel=newton).most <= 16
