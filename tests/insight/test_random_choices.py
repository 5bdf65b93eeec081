"""explain() says where random choices are off for lack of a key, by whether a cell's step depends on a key."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.randomness import drop


XS = jnp.ones((6, 2, 3))
OFF = "off, because the call has no `key`"


class DropsByItself(cells.RNN):
    """A cell of a user that drops its output where it gets a key."""

    def with_key(self, key, params, x):
        def step(params, carry, scanned):
            x, index = scanned
            carry, y = self(params, carry, x)
            return carry, drop(y, jax.random.bernoulli(jax.random.fold_in(key, index), 0.5, y.shape), 0.5)

        return step


RANDOM = {
    "dropout": rs.dropout(cells.LSTM(4), 0.5),
    "recurrent": rs.dropout(cells.GRU(4), 0.5, on="recurrent", each="sequence"),
    "zoneout": rs.zoneout(cells.LSTM(4), 0.1),
    "in a stack": rs.stack(cells.GRU(4), rs.residual(rs.dropout(cells.GRU(4), 0.5))),
    "of a user": DropsByItself(4),
    "of a user, in a stack": rs.stack(DropsByItself(4), cells.GRU(3)),
    "windowed": rs.windowed(rs.dropout(cells.RNN(4), 0.4), 2),
}
PLAIN = {
    "cell": cells.LSTM(4),
    "stack": rs.stack(cells.GRU(4), rs.residual(cells.GRU(4))),  # It has `with_key`, for the cells within.
    "windowed": rs.windowed(cells.RNN(4), 2),
}


def explained(cell, **options):
    params = cell.init(jax.random.key(0), 3)
    return rs.explain(cell, params, cell.initial_carry(XS[0]), XS, **options)


@pytest.mark.parametrize("name", RANDOM)
def test_random_choices_that_are_off_are_told(name):
    assert explained(RANDOM[name]).drops_nothing
    assert OFF in str(explained(RANDOM[name]))
    assert not explained(RANDOM[name], key=jax.random.key(1)).drops_nothing


@pytest.mark.parametrize("name", PLAIN)
def test_cells_without_random_choices_say_nothing(name):
    assert not explained(PLAIN[name]).drops_nothing
    assert OFF not in str(explained(PLAIN[name]))


def test_a_function_has_no_random_choices():
    def cell(params, carry, x):
        return carry + x, x

    assert not rs.explain(cell, None, jnp.zeros((2, 3)), XS).drops_nothing


def test_the_dropout_of_a_chain_is_told():
    for dropout in (0.0, 0.5):
        net = rs.chain(
            rs.chain(rs.layer(cells.GRU(4)), rs.layer(cells.GRU(4)), dropout=dropout), rs.layer(cells.RNN(2))
        )
        params = net.init(jax.random.key(0), 3)
        explanation = rs.explain(net, params, XS)
        assert explanation.drops_nothing == (OFF in str(explanation)) == (dropout > 0)
        assert not any(scan.drops_nothing for scan in explanation.scans.values())
        assert OFF not in str(rs.explain(net, params, XS, key=jax.random.key(1)))
