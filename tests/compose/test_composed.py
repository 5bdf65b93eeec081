"""Cells around cells, without random choices: residuals and windows."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from zoo.case import Case, assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


def test_a_residual_cell_adds_its_input():
    inner = cells.GRU(3)
    params, carry, xs = Case(inner).arguments()
    last, ys = rs.scan(inner, params, carry, xs)
    assert_trees_close(rs.scan(rs.residual(inner), params, carry, xs), (last, ys + xs))


def test_residual_layers_of_a_stack_add_what_comes_from_below():
    lower, upper = cells.RNN(4), cells.LSTM(4)
    stack = rs.stack(lower, upper, residual=[1])
    params, carry, xs = Case(stack).arguments()
    _, below = rs.scan(lower, params["layer_0"], carry[0], xs)
    _, above = rs.scan(upper, params["layer_1"], carry[1], below)
    assert_trees_close(rs.scan(stack, params, carry, xs)[1], above + below)


def test_a_windowed_cell_sees_its_last_outputs_the_oldest_first():
    inner = cells.GRU(2)
    cell = rs.windowed(inner, 3)
    params, (state, window), xs = Case(cell).arguments(length=5)
    past = list(jnp.moveaxis(window, 1, 0))
    ys = []
    for x in xs:
        state, y = inner(params, state, jnp.concatenate([x, *past[-3:]], axis=-1))
        past.append(y)
        ys.append(y)
    expected = (state, jnp.stack(past[-3:], axis=1)), jnp.stack(ys)
    assert_trees_close(rs.scan(cell, params, Case(cell).arguments(length=5)[1], xs), expected)


@pytest.mark.parametrize("inner", [cells.GRU(4), cells.GRU(4, dtype=jnp.bfloat16), cells.LSTM(4)], ids=str)
@pytest.mark.parametrize("dtype", [jnp.int32, bool])
def test_a_window_beside_integers_holds_outputs(inner, dtype):
    cell = rs.windowed(inner, 2)
    params = cell.init(jax.random.key(0), 3)
    xs = (jnp.arange(24).reshape(4, 2, 3) % 3).astype(dtype)

    def run(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)

    def gradient(xs):
        return jax.grad(lambda params: run(params, xs)[1].astype(jnp.float32).sum())(params)

    numbers = xs.astype(jnp.float32)
    assert_trees_close(run(params, xs), run(params, numbers), tolerance=1e-6)
    assert_trees_close(gradient(xs), gradient(numbers), tolerance=1e-6)


def test_a_residual_of_another_size_is_refused():
    cell = rs.residual(cells.GRU(4))
    with pytest.raises(
        ValueError, match=r"^residual: .* got input_size=3 for GRU\(hidden_size=4\), whose output has 4"
    ):
        cell.init(jax.random.key(0), 3)
    params, carry, xs = Case(cells.GRU(4)).arguments()
    with pytest.raises(ValueError, match=r"^residual: .* input float64\[3,3\] and the output float64\[3,4\] of GRU"):
        cell(params, carry, xs[0])


@pytest.mark.parametrize("residual", [[2], [-1]])
def test_residual_layers_that_are_not_there(residual):
    with pytest.raises(ValueError, match=r"^stack: `residual` must name layers from 0 to 1; got "):
        rs.stack(cells.GRU(4), cells.GRU(4), residual=residual)


@pytest.mark.parametrize("window", [0, True])
def test_a_window_that_cannot_be(window):
    with pytest.raises(ValueError, match=rf"^windowed: `window` must be .* of at least 1; got {window}\."):
        rs.windowed(cells.GRU(4), window)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "make",
    [rs.residual, rs.windowed, rs.dropout, rs.zoneout, rs.adaptive_computation, rs.layer, rs.bidirectional],
)
def test_what_is_no_cell(make):
    arguments = {rs.windowed: [1], rs.dropout: [0.1], rs.zoneout: [0.1], rs.adaptive_computation: [2]}.get(make, [])
    with pytest.raises(TypeError, match=r": a cell must be .* with `init`, .*; got function, without 'init'"):
        make(lambda params, carry, x: (carry, x), *arguments)
