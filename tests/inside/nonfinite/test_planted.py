"""NaN and inf planted in each name, at a step and row, in values, cotangents and tangents of cells and nets."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from planted_values import Planted, own_name
from rnnscan import cells
from tiers import variants


STEPS, ROWS, FEATURES = 6, 3, 5

CELLS = {
    "RNN": cells.RNN(4),
    "GRU": cells.GRU(4),
    "LSTM": cells.LSTM(4),
    "MGU": cells.MGU(4),
    "IndRNN": cells.IndRNN(4, activation=jnp.tanh),
    "SRU": cells.SRU(4),
    "MinGRU": cells.MinGRU(4),
    "QRNN": cells.QRNN(4),
    "RGLRU": cells.RGLRU(FEATURES),
    "LayerNormLSTM": cells.LayerNormLSTM(4),
    "SLSTM": cells.SLSTM(4),
    "MLSTM": cells.MLSTM(4),
    "stack": rs.stack(cells.GRU(4), cells.RNN(4)),
    "residual": rs.residual(cells.GRU(FEATURES)),
}
QUICK = ("LSTM", "QRNN", "stack")


def loss(results):
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results))


@cache
def arguments(which):
    """Random parameters, carry and inputs: nothing is zero."""
    inner, random = CELLS[which], np.random.default_rng(3)

    def fill(leaf):
        values = random.uniform(0.1, 0.6, size=leaf.shape) * random.choice([-1, 1], size=leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    x = jax.ShapeDtypeStruct((ROWS, FEATURES), jnp.float32)
    params = jax.tree.map(fill, jax.eval_shape(partial(inner.init, input_size=FEATURES), jax.random.key(0)))
    carry = jax.tree.map(fill, jax.eval_shape(inner.initial_carry, x))
    return params, carry, fill(jnp.empty((STEPS, ROWS, FEATURES)))


def planted(plants, direction, name, step, row, plant):
    at = plants[direction][name].at[step, row].set(plant)
    return plants | {direction: plants[direction] | {name: at}}


@pytest.mark.parametrize("which", variants({name: (name,) for name in CELLS}, QUICK))
@pytest.mark.parametrize(("direction", "plant"), [("forward", 2.0), ("backward", 1.0)])
def test_a_planted_value_of_a_cell_is_found_by_name(which, direction, plant):
    cell = Planted(CELLS[which])
    params, carry, xs = arguments(which)
    clean = cell.plants(STEPS, ROWS)
    assert rs.first_nonfinite(cell, params, carry, (xs, clean), loss=loss) is None
    assert clean[direction]
    for number, name in enumerate(clean[direction]):
        step, row = 1 + number % (STEPS - 2), number % ROWS
        report = rs.first_nonfinite(
            cell, params, carry, (xs, planted(clean, direction, name, step, row, plant)), loss=loss
        )
        assert (report.step, report.row, own_name(report), report.direction) == (step, row, name, direction), str(
            report
        )
        assert report.primitive == ("log" if direction == "forward" else "div")
        assert report.operands[-1] == 1 - plant
        assert "planted_values.py" in report.place


# Infinities that a gate saturates with reach nothing, so these are cells of which some reach the results.
REACHED = {"RNN": 0, "LSTM": 0, "GRU": 1, "SRU": 1, "QRNN": 0, "stack": 1, "SLSTM": 1, "LayerNormLSTM": 1}


@pytest.mark.parametrize("which", variants({name: (name,) for name in REACHED}, ("RNN", "GRU", "SRU")))
def test_a_planted_infinity_is_found_if_it_reaches_the_results(which):
    cell = Planted(CELLS[which])
    params, carry, xs = arguments(which)
    clean = cell.plants(STEPS, ROWS)

    @jax.jit
    def function(params, plants):
        return jax.value_and_grad(lambda params: loss(rs.scan(cell, params, carry, (xs, plants))))(params)

    found = 0
    for name in clean["forward"]:
        plants = planted(clean, "forward", name, 2, 1, 1.0)
        is_finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(function(params, plants)))
        report = rs.first_nonfinite(function, params, plants)
        assert (report is None) == is_finite
        if report is not None:
            found += 1
            assert (report.step, report.row, own_name(report), report.value) == (2, 1, name, -np.inf), str(report)
    assert (found > 0) == bool(REACHED[which])


@pytest.mark.parametrize("step", [0, STEPS - 1])
@pytest.mark.parametrize(
    ("jitted", "reverse"),
    variants({f"{a}, {b}": (a, b) for a in (False, True) for b in (False, True)}, ["True, False", "False, True"]),
)
def test_the_first_and_the_last_step_are_found_in_functions_too(step, jitted, reverse):
    cell = Planted(CELLS["RNN"])
    params, carry, xs = arguments("RNN")

    def value_and_grad(params, inputs):
        def of(params):
            return loss(rs.scan(cell, params, carry, inputs, reverse=reverse))

        return jax.value_and_grad(of)(params)

    function = jax.jit(value_and_grad) if jitted else value_and_grad
    clean = cell.plants(STEPS, ROWS)
    assert rs.first_nonfinite(function, params, (xs, clean)) is None
    for direction, plant in (("forward", 2.0), ("backward", 1.0)):
        inputs = (xs, planted(clean, direction, "preactivation", step, 2, plant))
        report = rs.first_nonfinite(function, params, inputs)
        assert (report.step, report.row, own_name(report), report.direction) == (step, 2, "preactivation", direction)


@pytest.mark.parametrize("which", variants({name: (name,) for name in CELLS}, ("RNN", "LSTM")))
def test_a_planted_tangent_is_found(which):
    cell = Planted(CELLS[which], ("tangent",))
    params, carry, xs = arguments(which)
    clean = cell.plants(STEPS, ROWS)

    @jax.jit
    def tangents(params, inputs):
        return jax.jvp(lambda params: loss(rs.scan(cell, params, carry, inputs)), (params,), (params,))

    assert rs.first_nonfinite(tangents, params, (xs, clean)) is None
    for name in clean["tangent"]:
        report = rs.first_nonfinite(tangents, params, (xs, planted(clean, "tangent", name, 3, 1, 1.0)))
        assert (report.step, report.row, own_name(report), report.direction) == (3, 1, name, "tangent")


@pytest.mark.parametrize("options", ["lengths", "resets", "segments", "truncated"])
def test_options_of_scan_are_honored(options):
    cell = Planted(CELLS["GRU"])
    params, carry, xs = arguments("GRU")
    given = {
        "lengths": {"seq_lengths": jnp.array([6, 5, 3])},
        "resets": {"reset": jnp.zeros((STEPS, ROWS), bool).at[2].set(True), "reset_to": carry},
        "segments": {"memory": rs.Memory(segment=2)},
        "truncated": {"truncate": 3},
    }[options]
    clean = cell.plants(STEPS, ROWS)
    for direction, plant in (("forward", 2.0), ("backward", 1.0)):
        inputs = (xs, planted(clean, direction, "gates", 3, 1, plant))
        report = rs.first_nonfinite(cell, params, carry, inputs, loss=loss, **given)
        assert (report.step, report.row, own_name(report), report.direction) == (3, 1, "gates", direction)
    if options == "lengths":  # Row 2 is padding from step 3 on.
        inputs = (xs, planted(clean, "forward", "gates", 4, 2, 2.0))
        assert rs.first_nonfinite(cell, params, carry, inputs, loss=loss, **given) is None
