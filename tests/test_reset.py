"""Resets go back to the cell's own carry, or to `reset_to`, and never to the carry that is passed."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from slow_reference import arguments, cell
from zoo.case import Case, assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

CASE = Case(cells.GRU(4))
RESET = jnp.zeros((7, 3), bool).at[3].set(True).at[5, 1].set(True)


@pytest.mark.core("windows equal the whole")
def test_two_windows_with_the_carry_handed_on_are_the_whole():
    params, carry, xs = CASE.arguments()
    last, ys = rs.scan(CASE.cell, params, carry, xs, reset=RESET)
    middle, first = rs.scan(CASE.cell, params, carry, xs[:2], reset=RESET[:2])
    end, second = rs.scan(CASE.cell, params, middle, xs[2:], reset=RESET[2:])
    assert_trees_close((end, jnp.concatenate([first, second])), (last, ys))
    # From the first reset on it is the cell's own beginning, and not the carry that was passed.
    alone = rs.scan(CASE.cell, params, CASE.cell.initial_carry(xs[0]), xs[3:5])[1]
    assert_trees_close(ys[3:5], alone)


@pytest.mark.core("lengths and resets")
def test_reset_to_gets_gradients_and_may_leave_out_the_batch_axis():
    params, carry, xs = CASE.arguments()
    (row,) = CASE.arguments(batch=1, seed=1)[1]

    def by_scan(params, carry, xs, row):
        return rs.scan(CASE.cell, params, carry, xs, reset=RESET, reset_to=(row[0],))

    def by_loop(params, carry, xs, row):
        ys = []
        for x, reset in zip(xs, RESET, strict=True):
            carry = (jnp.where(reset[:, None], row, carry[0]),)
            carry, y = CASE.cell(params, carry, x)
            ys.append(y)
        return carry, jnp.stack(ys)

    fast, slow = (
        jax.jit(jax.grad(lambda *given, run=run: CASE.loss(run(*given)), argnums=(0, 1, 2, 3)))(params, carry, xs, row)
        for run in (by_scan, by_loop)
    )
    assert_trees_close(fast, slow)
    assert float(jnp.abs(fast[3]).min()) > 0


def test_a_number_is_a_carry_to_go_back_to():
    def count(params, carry, x):
        return carry + 1, carry + x

    carry, ys = rs.scan(count, None, jnp.full(3, 5.0), jnp.zeros((7, 3)), reset=RESET, reset_to=0)
    assert ys[:, 0].tolist() == [5, 6, 7, 0, 1, 2, 3]
    assert ys[:, 1].tolist() == [5, 6, 7, 0, 1, 0, 1]
    assert carry.dtype == jnp.float64


def test_cells_around_cells_and_cells_with_a_key_go_back_to_their_own_carry():
    cell = rs.stack(rs.dropout(cells.LSTM(4), 0.5), rs.zoneout(cells.GRU(4), 0.3))
    params, carry, xs = Case(cell).arguments()
    keyed = rs.with_key(cell, jax.random.key(1), params, xs[0])
    inputs = (xs, jnp.arange(7))
    expected = rs.scan(keyed, params, carry, inputs, reset=RESET, reset_to=cell.initial_carry(xs[0]))
    assert_trees_close(rs.scan(keyed, params, carry, inputs, reset=RESET), expected)
    net = rs.layer(cell)
    assert_trees_close(net(params, xs, carry=carry, key=jax.random.key(1), reset=RESET), expected)


def test_nets_go_back_to_the_carry_of_each_part():
    net = rs.chain(rs.bidirectional(cells.RNN(2)), rs.layer(cells.GRU(4)))
    xs = Case(cells.GRU(2)).arguments()[2]
    params = net.init(jax.random.key(0), 3)
    fill = lambda value: jax.tree.map(lambda leaf: jnp.full_like(leaf, value), net.initial_carry(xs))  # noqa: E731
    carry, there = fill(0.5), fill(-0.3)
    reset = jnp.zeros((7, 3), bool).at[3].set(True)
    _, ys = net(params, xs, carry=carry, reset=reset, reset_to=there)
    _, default = net(params, xs, carry=carry, reset=reset)
    # In reverse, the document that begins at step 3 ends there.
    first = [
        net.nets[0](params["net_0"], piece, carry=(begin[0][0], end[0][1]))[1]
        for piece, begin, end in ((xs[:3], carry, there), (xs[3:], there, carry))
    ]
    expected = [
        net.nets[1](params["net_1"], piece, carry=begin[1])[1]
        for piece, begin in zip(first, (carry, there), strict=True)
    ]
    assert_trees_close(ys, jnp.concatenate(expected))
    assert float(jnp.abs(ys - default)[3:].max()) > 0.01


@pytest.mark.core("windows equal the whole")
def test_by_window_and_by_chunk_reset_as_scan_does():
    params, carry, xs = CASE.arguments()
    there = CASE.arguments(seed=1)[1]
    for given in ({}, {"reset_to": there}):
        expected = rs.scan(CASE.cell, params, carry, xs, reset=RESET, **given)
        windows = rs.truncated.by_window(CASE.cell, params, carry, xs, every=2, back=3, reset=RESET, **given)
        assert_trees_close(windows, expected)
        assert_trees_close(rs.truncated.by_chunk(CASE.cell, params, carry, xs, size=3, reset=RESET, **given), expected)


def lstm(**options):
    cell = cells.LSTM(4)
    params, carry, xs = Case(cell).arguments()
    return lambda: rs.scan(cell, params, carry, xs, **options)


def narrow():
    cell = cells.GRU(4)
    params, carry, xs = Case(cell).arguments()
    return lambda: rs.scan(cell, params, (carry[0].astype(jnp.float32),), xs, reset=RESET)


ERRORS = {
    "a plain function": (
        lambda: rs.scan(cell, *arguments(0, 7, 3), reset=RESET),
        ValueError,
        r"got a cell without an `initial_carry`, and reset_to=None\. Set `reset_to`",
    ),
    "reset_to alone": (lstm(reset_to=(1, 2)), ValueError, r"got `reset_to` without `reset`\. Give both"),
    "another structure": (
        lambda: lstm(reset=RESET, reset_to=jnp.zeros((3, 4)))(),
        TypeError,
        r"structure of `carry`, PyTreeDef\(\(\*, \*\)\); got PyTreeDef\(\*\) in `reset_to`",
    ),
    "another shape": (
        lambda: lstm(reset=RESET, reset_to=(jnp.zeros((3, 4)), jnp.zeros((2, 4))))(),
        ValueError,
        r"got float64\[2,4\] at `reset_to\[1\]`, and float64\[3,4\] at `carry\[1\]`",
    ),
    "another dtype": (
        lambda: lstm(reset=RESET, reset_to=(jnp.zeros((3, 4)), jnp.zeros((3, 4), jnp.float32)))(),
        TypeError,
        r"got float32\[3,4\] at `reset_to\[1\]`, and float64\[3,4\] at `carry\[1\]`",
    ),
    "a carry that the cell's own does not fit": (
        lambda: narrow()(),
        TypeError,
        r"got float64\[3,4\] at `cell\.initial_carry\(x\)\[0\]`, and float32\[3,4\] at `carry\[0\]`",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_carry_to_go_back_to_that_cannot_be(case):
    call, error, message = ERRORS[case]
    with pytest.raises(error, match=message):
        call()
