"""A progress bar around a cell moves, and changes no result."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.inside.progress.windows import Windows
from tiers import variants


T, N, D = 23, 3, 2
pytestmark = pytest.mark.usefixtures("x64")


class Seen:
    """What a bar of tqdm was told."""

    opened: ClassVar[list["Seen"]] = []

    def __init__(self, total, desc, **options):
        self.total, self.desc, self.n, self.steps, self.closed = total, desc, 0, [], False
        Seen.opened.append(self)

    def update(self, steps):
        self.n += steps
        self.steps.append(self.n)

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def bars(monkeypatch):
    """The bars, in the order in which they opened."""
    monkeypatch.setattr("tqdm.auto.tqdm", Seen)
    monkeypatch.setattr(Seen, "opened", [])

    def opened():
        jax.effects_barrier()
        return Seen.opened

    return opened


def arguments(cell, seed=0):
    random = np.random.default_rng(seed)
    xs = jnp.asarray(random.normal(size=(T, N, D)))
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), cell.init(jax.random.key(0), input_size=D)
    )
    return params, jax.tree.map(lambda leaf: leaf + 0.1, cell.initial_carry(xs[0])), xs


def assert_equal(got, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12), got, expected)


def loss_of(cell, **options):
    def loss(params, carry, xs):
        carry, ys = rs.scan(cell, params, carry, xs, **options)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(carry)) + jnp.sum(jnp.cos(ys))

    return loss


LENGTHS = jnp.array([0, T, 11])
OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"seq_lengths": LENGTHS},
    "held padding": {"seq_lengths": LENGTHS, "padding": "hold"},
    "held padding, reverse": {"mask": jnp.arange(T)[:, None] % 4 != jnp.arange(N), "padding": "hold", "reverse": True},
    "dropped padding": {"seq_lengths": LENGTHS, "padding": "drop"},
    "resets": {"reset": jnp.arange(T)[:, None] % 7 == jnp.arange(N)},
    "truncate": {"truncate": 3},
    "segments": {"memory": rs.Memory(segment=2)},
    "lax": {"memory": None, "engine": "lax"},
    "key": {"key": jax.random.key(5), "first_step": 4},
    "key, reverse": {"key": jax.random.key(5), "reverse": True},
}


QUICK = ["held padding, reverse", "resets", "truncate", "key, reverse"]


@pytest.mark.parametrize("every", variants([5, None, 1, 100], [5]))
@pytest.mark.parametrize("name", variants(list(OPTIONS), QUICK))
def test_results_and_gradients_are_those_without_a_bar(name, every, bars):
    cell, options = rs.dropout(rs.cells.LSTM(4), 0.5), OPTIONS[name]
    given = arguments(cell)
    shown = rs.progress(cell, every=every)
    assert_equal(rs.scan(shown, *given, **options), rs.scan(cell, *given, **options))
    assert_equal(
        jax.grad(loss_of(shown, **options), (0, 1, 2))(*given), jax.grad(loss_of(cell, **options), (0, 1, 2))(*given)
    )
    assert all(bar.closed and bar.n == T for bar in bars())


def tangents_of(given):
    return jax.tree.map(jnp.cos, given)


TRANSFORMED = {
    "jvp": lambda loss, given: jax.jvp(loss, given, tangents_of(given)),
    "jvp of grad": lambda loss, given: jax.jvp(jax.grad(loss), given, tangents_of(given)),
    "hessian": lambda loss, given: jax.hessian(loss, 1)(*given),
    "vmap": lambda loss, given: jax.vmap(jax.grad(loss))(
        *(jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), given))
    ),
    "checkpoint": lambda loss, given: jax.grad(jax.checkpoint(loss))(*given),
}


@pytest.mark.parametrize("name", variants(list(TRANSFORMED), ["jvp", "vmap"]))
def test_every_transformation_has_the_results_without_a_bar(name):
    cell = rs.cells.GRU(3)
    given = arguments(cell)
    transformed = jax.jit(TRANSFORMED[name], static_argnums=0)
    assert_equal(*(transformed(loss_of(each), given) for each in (rs.progress(cell, every=5), cell)))


@pytest.mark.parametrize("jit", [False, True])
def test_bars_move_forward_and_backward(jit, bars):
    cell = rs.progress(rs.cells.GRU(3), every=5, label="pass")
    gradient = jax.grad(loss_of(cell))
    given = arguments(cell)
    (jax.jit(gradient) if jit else gradient)(*given)
    forward, backward = bars()
    assert (forward.desc, forward.total, forward.steps) == ("pass", T, [5, 10, 15, 20, 23])
    assert (backward.desc, backward.total, backward.steps) == ("pass, backward", T, [3, 8, 13, 18, 23])
    assert forward.closed
    assert backward.closed


def test_each_run_of_a_compiled_program_has_its_bar(bars):
    cell = rs.progress(rs.cells.GRU(3), every=12)
    run = jax.jit(lambda *given: rs.scan(cell, *given)[1])
    for _ in range(2):
        run(*arguments(cell))
    assert [bar.steps for bar in bars()] == [[12, 23], [12, 23]]


def test_rows_of_a_vmap_share_a_bar(bars):
    cell = rs.progress(rs.cells.GRU(3), every=12)
    params, carry, xs = arguments(cell)
    jax.vmap(lambda xs: rs.scan(cell, params, carry, xs)[1])(jnp.stack([xs, xs]))
    (bar,) = bars()
    assert bar.steps == [12, 23]


def test_scans_share_a_bar_of_the_total(bars):
    cell = rs.progress(rs.cells.GRU(3), total=T, every=10)
    params, carry, xs = arguments(cell)
    for window in (xs[:12], xs[12:]):
        carry, _ = rs.scan(cell, params, carry, window)
    (bar,) = bars()
    assert (bar.total, bar.steps, bar.closed) == (T, [10, 12, 22, 23], True)


def test_a_layer_of_a_net_has_a_bar(bars):
    shown, cell = (rs.layer(each) for each in (rs.progress(rs.cells.GRU(3), every=12), rs.cells.GRU(3)))
    params, xs = cell.init(jax.random.key(0), input_size=D), arguments(rs.cells.GRU(3))[2]
    assert_equal(shown(params, xs), cell(params, xs))
    assert [bar.steps for bar in bars()] == [[12, 23]]


def test_functions_integers_and_no_inputs(bars):
    def count(params, carry, x):
        return (carry[0] + 1, carry[1] * params), carry[1]

    carry, ys = rs.scan(rs.progress(count), jnp.float64(2), (0, 1.0), length=7)
    assert int(carry[0]) == 7
    assert_equal(ys, 2.0 ** jnp.arange(7))
    assert rs.scan(rs.progress(count), jnp.float64(2), (0, 1.0), length=0)[1].shape == (0,)
    assert [bar.total for bar in bars()] == [7]


def test_a_carry_may_leave_out_its_rows(bars):
    cell = rs.cells.GRU(3)
    params, _, xs = arguments(cell)
    shared = (jnp.arange(3.0),)
    assert_equal(rs.scan(rs.progress(cell), params, shared, xs), rs.scan(cell, params, shared, xs))


@pytest.mark.parametrize(("steps", "length"), [(100_000, 5_000), (1_000, 50), (10, 1), (997, 50), (1, 1), (120, 6)])
def test_windows_are_about_twenty(steps, length):
    assert Windows.of(steps, None, reverse=False, truncate=None).length == length


def test_bad_input():
    with pytest.raises(TypeError, match="the cell must be a function"):
        rs.progress(3)
    with pytest.raises(ValueError, match="`every` must be a positive number of steps, or None; got 0"):
        rs.progress(rs.cells.GRU(3), every=0)
    with pytest.raises(ValueError, match="`total` must be a positive"):
        rs.progress(rs.cells.GRU(3), total=1.5)
    cell = rs.cells.GRU(3)
    params, carry, xs = arguments(cell)
    with pytest.raises(ValueError, match="`seq_lengths` must be from 0"):
        rs.scan(rs.progress(cell), params, carry, xs, seq_lengths=jnp.array([1, 2, T + 1]))
    with pytest.raises(ValueError, match="got both"):
        rs.scan(rs.progress(cell), params, carry, xs, seq_lengths=LENGTHS, mask=jnp.ones((T, N), bool))
