"""Traced values and cotangents equal those of a loop in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from tiers import variants
from traced_loop import loop, loss_of, normal, with_cotangents, with_noise


STEPS, ROWS, FEATURES = 7, 3, 4
CELLS = {
    "RNN": cells.RNN(4),
    "LSTM": cells.LSTM(4),
    "GRU": cells.GRU(4),
    "LayerNormLSTM": cells.LayerNormLSTM(4),
    "MGU": cells.MGU(4),
    "MinGRU": cells.MinGRU(4),
    "MinLSTM": cells.MinLSTM(4),
    "IndRNN": cells.IndRNN(4),
    "SRU": cells.SRU(4),
    "SLSTM": cells.SLSTM(4, heads=2),
    "MILSTM": cells.MILSTM(4),
    "residual": rs.residual(cells.GRU(FEATURES)),
    "stack": rs.stack(cells.LSTM(5), cells.GRU(4)),
}
OPTIONS = ["plain", "lengths", "hold", "drop", "reset", "reverse", "truncate", "segment", "recompute", "lax", "all"]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def example(cell):
    xs = normal(1, STEPS, ROWS, FEATURES)
    params = with_noise(cell.init(jax.random.key(0), FEATURES))
    carry = jax.tree.map(lambda leaf: 0.5 * normal(leaf.size, *leaf.shape), cell.initial_carry(xs[0]))
    return params, carry, xs


def choices(option, cell, xs):
    """The options of `scan`, and those of the loop."""
    lengths, reset = jnp.array([7, 4, 0]), jax.random.bernoulli(jax.random.key(5), 0.3, (STEPS, ROWS))
    zeros = cell.initial_carry(xs[0])
    return {
        "plain": ({}, {}),
        "lengths": ({"seq_lengths": lengths}, {"lengths": lengths}),
        "hold": ({"seq_lengths": lengths, "padding": "hold"}, {"lengths": lengths, "padding": "hold"}),
        "drop": ({"seq_lengths": lengths, "padding": "drop"}, {"lengths": lengths, "padding": "drop"}),
        "reset": ({"reset": reset}, {"reset": reset, "reset_to": zeros}),
        "reverse": ({"reverse": True}, {"reverse": True}),
        "truncate": ({"truncate": 3}, {"truncate": 3}),
        "segment": ({"memory": rs.Memory(segment=3)}, {}),
        "recompute": ({"memory": rs.Memory(recompute="all", chunk=3)}, {}),
        "lax": ({"engine": "lax"}, {}),
        "all": (
            {"seq_lengths": lengths, "reset": reset, "reverse": True, "truncate": 4, "memory": rs.Memory(segment=2)},
            {"lengths": lengths, "reset": reset, "reset_to": zeros, "reverse": True, "truncate": 4},
        ),
    }[option]


def numbered(values):
    """The values of a trace under the paths that the loop has: all with numbers, and those of the carry by leaf."""
    carry = {path: f"carry[{i}]" for i, path in enumerate(path for path in values if path.startswith("carry"))}
    return {carry.get(path, path if path.endswith("]") else f"{path}[0]"): value for path, value in values.items()}


def assert_agrees(trace, values, cotangents):
    ours, theirs = map(numbered, (trace, trace.cotangents))
    assert sorted(ours) == sorted(values)
    assert sorted(theirs) == sorted(values)
    for path, value in values.items():
        np.testing.assert_allclose(ours[path], value, rtol=1e-12, atol=1e-12, err_msg=path)
        np.testing.assert_allclose(theirs[path], cotangents[path], rtol=1e-12, atol=1e-12, err_msg=path)


@pytest.mark.parametrize(
    ("name", "option"),
    variants(
        {f"{name}-{option}": (name, option) for name in CELLS for option in OPTIONS},
        # All options at once for some kinds of cells; for the LSTM also each that changes what is traced or kept.
        [
            *(f"{name}-all" for name in ("LSTM", "stack")),
            *(f"LSTM-{option}" for option in ("hold", "segment")),
        ],
    ),
)
def test_cells(name, option):
    cell = CELLS[name]
    params, carry, xs = example(cell)
    ours, loops = choices(option, cell, xs)
    trace = rs.trace(cell, params, carry, xs, loss=loss_of, **ours)
    values, cotangents = with_cotangents(lambda added: loop(cell, params, carry, xs, added, **loops), loss_of)
    assert_agrees(trace, values, cotangents)
    assert trace.steps == tuple(range(STEPS))
