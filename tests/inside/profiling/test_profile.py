"""profile() shows the scopes, passes and loops of a program, and what the engine estimated."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells


T, N, D, H = 50, 8, 16, 64
XS = jax.random.normal(jax.random.key(1), (T, N, D))


def loss_of(net, params, xs=XS):
    return jnp.square(net(params, xs)[1]).mean()


def scopes_of(profile, direction=None):
    return {time.scope for time in profile.scopes if direction in (None, time.direction)}


@pytest.mark.newest("profiles")
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad])
def test_a_scan_has_its_cell_and_names(transform):
    cell = cells.LSTM(H)
    xs = jnp.tile(XS, (1, 16, 1))  # A step takes longer than the longest records of the profiler on a busy machine.

    def loss(params):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1].sum()

    profile = rs.profile(transform(loss), cell.init(jax.random.key(0), D))
    assert {"LSTM", "LSTM/gates"} <= scopes_of(profile, "forward")
    assert ({"LSTM", "LSTM/gates"} <= scopes_of(profile, "backward")) == (transform is jax.grad)
    directions = ["forward", "backward"] if transform is jax.grad else ["forward"]
    assert all(any(loop.direction == direction for loop in profile.loops) for direction in directions)
    assert {loop.scope for loop in profile.loops} == {"LSTM"}
    assert max(loop.iterations for loop in profile.loops if loop.direction == "forward") == T
    assert {estimate.scope for estimate in profile.estimates} == {"LSTM"}
    # Times of operations that run at once are shared, so they add up to no more than the run.
    assert 0 < profile.total <= profile.profiled_seconds
    assert all(loop.between <= loop.seconds <= profile.total for loop in profile.loops)
    assert any(time.step_by_step for time in profile.scopes)


def test_parts_of_nets_are_scopes():
    net = rs.chain(rs.layer(rs.stack(cells.LSTM(H), cells.GRU(H))), rs.bidirectional(cells.GRU(H)))
    profile = rs.profile(jax.grad(partial(loss_of, net)), net.init(jax.random.key(0), D))
    for direction in ("forward", "backward"):
        found = scopes_of(profile, direction)
        assert {"net_0/Stack/layer_0/gates", "net_0/Stack/layer_1/gates", "net_1/forward/GRU/gates"} <= found
    text = str(profile)
    assert "net_1/backward/GRU/gates" in text
    assert "GRU, backward: estimated" in text
    assert "us an iteration" in profile._repr_html_()


def test_modules_of_flax_are_scopes():
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential([rs.linen.RNN(cells.LSTM(H)), linen.Dense(3)])
    xs = XS.swapaxes(0, 1)
    variables = module.init(jax.random.key(0), xs)
    found = scopes_of(rs.profile(module.apply, variables, xs))
    assert any("/LSTM/" in scope and scope.endswith("/gates") for scope in found)
    assert any("layers_1" in scope for scope in found)


def test_a_step_that_overwrites_its_arguments_runs_more_than_once():
    cell = cells.LSTM(H)

    @partial(jax.jit, donate_argnums=0)
    def step(params, xs):
        gradients = jax.grad(lambda params: rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1].sum())(params)
        return jax.tree.map(lambda leaf, gradient: leaf - 0.1 * gradient, params, gradients)

    params = cell.init(jax.random.key(0), D)
    profile = rs.profile(step, params, xs=XS, runs=2)
    assert profile.runs == 2
    assert "LSTM/gates" in scopes_of(profile)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_a_function_without_a_scan_has_no_estimate():
    profile = rs.profile(lambda x: jnp.sin(x @ x), jnp.ones((200, 200)))
    assert scopes_of(profile) == {""}
    assert not profile.estimates
    assert not profile.loops
    assert "outside of scans" in str(profile)


def test_plain_autodiff_has_no_estimate():
    cell = cells.LSTM(H)

    def loss(params):
        return rs.scan(cell, params, cell.initial_carry(XS[0]), XS, memory=None)[1].sum()

    profile = rs.profile(jax.grad(loss), cell.init(jax.random.key(0), D))
    assert not profile.estimates
    assert "LSTM" in scopes_of(profile)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        ("LSTM", {}, TypeError, r"profile: the first argument must be a function; got str"),
        (jnp.sin, {"runs": 0}, ValueError, r"profile: `runs` must be a positive number of runs; got 0"),
        (jnp.sin, {"runs": 1.5}, ValueError, r"got 1\.5"),
    ],
)
def test_bad_input(function, options, error, message):
    with pytest.raises(error, match=message):
        rs.profile(function, jnp.ones(3), **options)


@pytest.mark.bad_input
def test_arguments_are_arrays():
    with pytest.raises(TypeError, match=r"profile: the function's arguments must be arrays or numbers; got 'a' in arg"):
        rs.profile(lambda x: x, "a")
    with pytest.raises(TypeError, match=r"got 'a' in argument 1\['b'\]\. Bind it with functools.partial"):
        rs.profile(lambda x, options: x, jnp.ones(3), {"b": "a"})
    with pytest.raises(TypeError, match="got 'a' in `mode`"):
        rs.profile(lambda x, mode: x, jnp.ones(3), mode="a")


def test_static_arguments_of_a_jitted_function_come_by_name():
    xs = jnp.ones(300)
    assert rs.profile(jax.jit(lambda x, power: jnp.tanh(x) ** power, static_argnames="power"), xs, power=3).total > 0
    with pytest.raises(TypeError, match=r"by position must not be static; got 1 that are, by `static_argnums`\. Pass"):
        rs.profile(jax.jit(lambda x, power: x**power, static_argnums=1), xs, 3)


@pytest.mark.parametrize(("held_up", "size"), [(1, 300), (3, 300), (3, 2)])
def test_a_pause_of_the_machine_takes_nothing_off(monkeypatch, held_up, size):
    module = sys.modules["rnnscan.inside.profiling.profile"]
    run_profiled = module.run_profiled

    def with_pauses(*arguments):
        events, seconds = run_profiled(*arguments)
        return events, [second + 10 * (run < held_up) for run, second in enumerate(seconds)]

    monkeypatch.setattr(module, "run_profiled", with_pauses)
    xs = jnp.ones((9, size, size))
    profile = rs.profile(lambda xs: jax.lax.scan(lambda carry, x: (jnp.tanh(carry @ carry) + x, carry), xs[0], xs), xs)
    assert profile.profiled_seconds > 1 > profile.total > 0
    assert [loop.iterations for loop in profile.loops] == [9] * (size > 2)  # A loop of few elements is one kernel.
    assert str(profile).count(" %") == len(profile.scopes)
