"""A progress bar around a cell moves, and changes no result."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.inside.progress import lengths
from rnnscan.inside.progress.bar import Bar
from rnnscan.inside.progress.lengths import divided
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
    assert divided(steps, None, steps, moves=20, truncate=1) == (length, length)


@pytest.mark.parametrize(
    ("steps", "every", "truncate", "expected"),
    [
        (100_000, None, 1, (100, 12_500)),  # Eight moves.
        (100_000, 5_000, 1, (100, 5_000)),
        (100_003, None, 1, (97, 12_513)),  # 129 windows; there is a rest.
        (100_000, 10_007, 1, (10_007, 10_007)),  # A prime number.
        (100_000, 5_000, 30, (30, 5_010)),
        (100_000, None, 30, (90, 12_510)),
        (1_000, None, 300, (300, 300)),
        (1_000, 2_000, 1, (1_000, 1_000)),
    ],
)
def test_short_windows_divide_the_steps_between_two_moves(steps, every, truncate, expected):
    window, period = divided(steps, every, 97, moves=8, truncate=truncate)
    assert (window, period) == expected
    assert period == steps or period % window == 0
    assert period == steps or window % truncate == 0


@pytest.fixture
def short(monkeypatch):
    """Windows of at least two steps, and of few bytes."""
    monkeypatch.setattr(lengths, "_BYTES", 1)
    monkeypatch.setattr(lengths, "_LEAST", 2)


def test_windows_have_the_chunks_of_the_whole_scan(bars):
    """Those of a short scan are shorter, which takes longer: 1.27 and 1.14 of the time without a bar."""
    cell, steps = rs.cells.GRU(96), 4_000
    params, xs = cell.init(jax.random.key(0), input_size=8), jnp.zeros((steps, 16, 8), jnp.float32)
    carry = cell.initial_carry(xs[0])
    chunk = {length: rs.explain(cell, params, carry, xs[:length]).chunk for length in (steps, 200)}
    assert chunk[200] < chunk[steps] == 50
    options = {"parallel": None, "truncate": None}
    for memory, expected in (
        (rs.Memory(), rs.Memory(chunk=50)),
        (rs.Memory(chunk=7), rs.Memory(chunk=7)),
        (rs.Memory(segment=40), rs.Memory(segment=40)),
        (None, None),
    ):
        window, period, found = lengths.window_and_period(
            cell, params, carry, xs, steps, 200, {**options, "memory": memory}
        )
        assert (window, period, found) == (200, 200, expected)


@pytest.mark.parametrize("name", variants(list(OPTIONS), QUICK))
def test_a_move_comes_after_several_windows(name, short, bars):
    cell, options = rs.dropout(rs.cells.LSTM(4), 0.5), OPTIONS[name]
    given = arguments(cell)
    shown = rs.progress(cell, every=8)
    assert_equal(
        jax.jit(jax.value_and_grad(loss_of(shown, **options), (0, 1, 2)))(*given),
        jax.value_and_grad(loss_of(cell, **options), (0, 1, 2))(*given),
    )
    forward, backward = bars()
    every = 9 if name == "truncate" else 8
    assert forward.steps == [every, 2 * every, T]
    assert backward.steps == [T - 2 * every, T - every, T]


def test_a_short_scan_moves_once(bars):
    """A move would cost more than 2 % of the time."""
    cell = rs.cells.GRU(3)
    rs.scan(rs.progress(cell), *arguments(cell))
    assert [bar.steps for bar in bars()] == [[T]]


def test_a_long_scan_moves_about_twenty_times(bars, monkeypatch):
    monkeypatch.setattr(lengths, "_SECONDS", 1e-9)
    cell = rs.cells.GRU(3)
    rs.scan(rs.progress(cell), *arguments(cell))
    assert [bar.steps for bar in bars()] == [[*range(2, T, 2), T]]


def test_a_bar_starts_again_after_a_run_that_was_interrupted(bars):
    bar = Bar("scan")
    for done in (10, 20, 10, 20, 23):
        bar.move(T, T, done)
    half, whole = bars()
    assert (half.steps, half.closed) == ([10, 20], True)
    assert (whole.steps, whole.closed) == ([10, 20, 23], True)


def test_a_shared_bar_starts_again_after_a_run_that_was_interrupted(bars):
    bar = Bar("scan")
    for steps, done in ((12, 12), (11, 5), (11, 10), (12, 6), (12, 12), (11, 11)):
        bar.move(T, steps, done)
    assert [each.steps for each in bars()] == [[12, 17, 22], [6, 12, 23]]


INNER = rs.cells.GRU(3)
AROUND = {
    "dropout": lambda shown: rs.dropout(shown(INNER), 0.5),
    "recurrent dropout": lambda shown: rs.dropout(shown(INNER), 0.5, on="recurrent"),
    "zoneout": lambda shown: rs.zoneout(shown(INNER), 0.5),
    "windowed": lambda shown: rs.windowed(shown(INNER), 2),
    "residual": lambda shown: rs.residual(shown(rs.cells.GRU(D))),
    "adaptive computation": lambda shown: rs.adaptive_computation(shown(INNER), 2),
    "stack": lambda shown: rs.stack(INNER, shown(INNER)),
    "stack of several": lambda shown: rs.stack(shown(rs.dropout(shown(INNER), 0.5)), shown(INNER)),
}


@pytest.mark.parametrize("name", variants(list(AROUND), ["recurrent dropout", "stack of several"]))
def test_a_cell_around_the_cell_has_the_bar(name, bars):
    cell = AROUND[name](lambda cell: cell)
    given = arguments(cell)
    options = {"key": jax.random.key(5)}
    shown = AROUND[name](lambda cell: rs.progress(cell, every=12))
    assert_equal(rs.scan(shown, *given, **options), rs.scan(cell, *given, **options))
    assert [bar.steps for bar in bars()] == [[12, 23]]


def test_an_rnn_of_linen_has_the_bar(bars):
    xs = arguments(INNER)[2].swapaxes(0, 1)
    shown, model = (rs.linen.RNN(each) for each in (rs.dropout(rs.progress(INNER, every=12), 0.5), INNER))
    params = shown.init(jax.random.key(0), xs)
    assert not bars()
    assert_equal(shown.apply(params, xs), model.apply(params, xs))
    jax.grad(lambda params: shown.apply(params, xs, rngs={"dropout": jax.random.key(1)}).sum())(params)
    assert [bar.steps for bar in bars()] == [[12, 23], [12, 23], [11, 23]]


def test_an_rnn_of_nnx_has_the_bar(bars):
    nnx = pytest.importorskip("flax.nnx")
    xs = arguments(INNER)[2].swapaxes(0, 1)
    shown, model = (rs.nnx.RNN(cell, in_features=D, rngs=nnx.Rngs(0)) for cell in (rs.progress(INNER, every=12), INNER))
    assert_equal(shown(xs), model(xs))
    assert [bar.steps for bar in bars()] == [[12, 23]]


def test_reports_are_those_of_the_scan_without_the_bar(bars):
    cell = rs.cells.GRU(4)
    given, shown = arguments(cell), rs.progress(cell, every=7)
    assert str(rs.explain(shown, *given)) == str(rs.explain(cell, *given))
    plain, reported = (rs.memory_report(one, *given, compile=False).training.kept_bytes for one in (cell, shown))
    assert plain == reported
    net, net_shown = (rs.chain(rs.layer(one), rs.layer(rs.cells.LSTM(3))) for one in (cell, shown))
    params, xs = net.init(jax.random.key(0), D), given[-1]
    assert str(rs.explain(net_shown, params, xs).scans["net_0"]) == str(rs.explain(net, params, xs).scans["net_0"])
    reports = rs.memory_report(net_shown, params, xs, compile=False)
    assert [*reports.scans] == ["net_0", "net_1"]
    assert [report.length for report in reports.scans.values()] == [T, T]


def test_iterations_of_newton_are_those_of_the_scan_without_the_bar(bars):
    cell = rs.cells.ParaGRU(4)
    given = arguments(cell)
    plain, shown = (rs.newton_iterations(one, *given) for one in (cell, rs.progress(cell, every=7)))
    assert_equal(shown.iterations, plain.iterations)
    assert_equal(shown.fell_back, plain.fell_back)


def test_a_profile_has_the_estimate_of_the_whole_scan(bars):
    cell = rs.cells.GRU(4)
    params, carry, xs = arguments(cell)
    profiles = [
        rs.profile(jax.jit(lambda params, one=one: rs.scan(one, params, carry, xs)[1].sum()), params)
        for one in (cell, rs.progress(cell, every=7))
    ]
    assert repr(rs.progress(cell)) == "Progress(cell=GRU(hidden_size=4), total=None, every=None)"
    assert [str(profile).count("estimated") for profile in profiles] == [1, 1]


@pytest.mark.parametrize("every", [7, T])
def test_rows_over_a_manual_axis_of_a_mesh(every, bars):
    cell, mesh = rs.cells.GRU(4), jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    params, carry, xs = arguments(cell)
    rows = jax.P("rows"), jax.P(None, "rows")

    def loss(one, params, xs):
        run = jax.shard_map(
            lambda params, carry, xs: rs.scan(one, params, carry, xs)[1],
            mesh=mesh,
            in_specs=(jax.P(), *rows),
            out_specs=rows[1],
        )
        return (run(params, carry, xs) ** 2).sum()

    shown, plain = (jax.value_and_grad(loss, (1, 2))(one, params, xs) for one in (rs.progress(cell, every=every), cell))
    assert_equal(shown, plain)


def test_a_schedule_of_segments_is_that_of_the_whole_scan(bars):
    cell = rs.cells.GRU(4)
    params, carry, xs = arguments(cell)
    memory = rs.Memory(segment=rs.checkpointing.nested(6, slots=4))
    shown, plain = (
        jax.value_and_grad(loss_of(one, memory=memory), (0, 1, 2))(params, carry, xs[:6])
        for one in (rs.progress(cell, every=2), cell)
    )
    assert_equal(shown, plain)
    assert [bar.steps for bar in bars()] == [[6], [6]]


def test_tools_take_a_bar_around_a_function_as_a_cell(bars):
    def halve(params, carry, x):
        carry = carry / 2 + x.sum()
        return carry, carry

    shown, xs = rs.progress(halve), arguments(INNER)[2]
    assert rs.first_nonfinite(shown, None, jnp.float64(0), xs) is None
    assert_equal(rs.trace(shown, None, jnp.float64(0), xs)["y"], rs.scan(halve, None, jnp.float64(0), xs)[1])


def test_a_scan_of_one_step_has_no_bar(bars):
    params, carry, xs = arguments(INNER)
    rs.scan(rs.progress(INNER), params, carry, xs[:1])
    assert not bars()
    rs.scan(rs.progress(INNER, total=2), params, carry, xs[:1])
    assert [bar.steps for bar in bars()] == [[1]]


def test_bad_input():
    with pytest.raises(TypeError, match="a cell must be callable as"):
        rs.progress(3)
    with pytest.raises(TypeError, match="got the class GRU"):
        rs.progress(rs.cells.GRU)
    with pytest.raises(TypeError, match="A net runs whole sequences"):
        rs.progress(rs.layer(rs.cells.GRU(3)))
    with pytest.raises(TypeError, match="`label` must be a text, shown before the bar; got 3"):
        rs.progress(rs.cells.GRU(3), label=3)
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
