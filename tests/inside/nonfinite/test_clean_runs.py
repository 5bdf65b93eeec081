"""Runs whose results are finite give no alarm: random values, lengths, resets and masks."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import attention, cells


STEPS, ROWS, FEATURES, KEYS = 9, 4, 3, 6
RUNS = 20

CELLS = {
    "RNN": cells.RNN(4),
    "GRU": cells.GRU(4),
    "LSTM": cells.LSTM(4),
    "SLSTM": cells.SLSTM(4),
    "MLSTM": cells.MLSTM(4),
    "MinLSTM": cells.MinLSTM(4),
    "LayerNormLSTM": cells.LayerNormLSTM(4),
    "stack": rs.stack(cells.GRU(4), cells.RNN(4)),
    "attention": attention.decoder(cells.GRU(4), attention.Dot(4)),
    "log-sum-exp": None,
}


def running_logsumexp(params, carry, x):
    """From -inf, with -inf at most inputs: what a hidden Markov model does."""
    scores = jnp.where(x > 0, params["w"] * x, -jnp.inf)
    new = jnp.logaddexp(carry, scores)
    return new, rs.name(jnp.exp(jnp.minimum(new, 3)), "probability")


@cache
def gradient(which):
    """A jitted loss with its gradient, of parameters, inputs and what masks them."""
    cell = CELLS[which]

    def loss(params, xs, memory, key_lengths, options):
        if which == "attention":
            step = cell.over(params, memory, encoder_lengths=key_lengths)
            return total(rs.scan(step, params, step.initial_carry(xs[0]), xs, **options)[1])
        if which == "log-sum-exp":
            carry = jnp.full((ROWS, FEATURES), -jnp.inf)
            return total(rs.scan(running_logsumexp, params, carry, xs, **options, reset_to=carry)[1])
        return total(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)[1])

    return jax.jit(jax.value_and_grad(loss))


def total(ys):
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(ys))


def arguments(which, seed):
    random = np.random.default_rng(seed)
    cell = CELLS[which]
    if cell is None:
        params = {"w": jnp.ones(FEATURES)}
    else:
        params = jax.tree.map(lambda leaf: 3 * leaf, cell.init(jax.random.key(seed), FEATURES))
    xs = random.normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32) * 10 ** random.uniform(-3, 3)
    lengths = random.integers(1, STEPS + 1, ROWS)
    xs[np.arange(STEPS)[:, None] >= lengths] = random.choice([np.nan, np.inf, 0])
    reset = random.random((STEPS, ROWS)) < 0.3
    memory = random.normal(size=(KEYS, ROWS, 4)).astype(np.float32)
    options = {"seq_lengths": jnp.asarray(lengths), "reset": jnp.asarray(reset)}
    return params, jnp.asarray(xs), jnp.asarray(memory), jnp.asarray(random.integers(1, KEYS + 1, ROWS)), options


@pytest.mark.parametrize("which", CELLS)
def test_clean_runs_give_no_alarm(which):
    function = gradient(which)
    finite = 0
    for seed in range(RUNS):
        given = arguments(which, seed)
        is_finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(function(*given)))
        report = rs.first_nonfinite(function, *given)
        assert (report is None) == is_finite, (seed, str(report))
        finite += is_finite
    assert finite >= RUNS - 2, finite
