"""Steps in windows of a sequence, and in loops that stop by a condition, are those of the sequence and of the loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from tiers import variants


T, N, H = 11, 3, 2
CARRY, ONE = jnp.zeros((N, H)), jnp.ones(())


def cell(params, carry, x):
    logarithm = rs.name(jnp.log(x) * params, "logarithm")
    carry = jnp.tanh(carry + logarithm)
    return carry, carry


def inputs(step, row):
    return jnp.ones((T, N, H)).at[step, row, 1].set(-1)


def facts(report):
    return report.step, report.row, report.name, report.primitive, report.direction


def loss(results):
    return results[1].sum()


@pytest.mark.parametrize("form", variants({name: (name,) for name in ("cell", "gradient", "jit")}, ("cell",)))
@pytest.mark.parametrize("reverse", [False, True])
def test_a_progress_bar_hides_neither_the_step_nor_the_row(form, reverse):
    shown = rs.progress(cell, every=4)
    search = {
        "cell": partial(rs.first_nonfinite, shown, reverse=reverse),
        "gradient": partial(rs.first_nonfinite, shown, reverse=reverse, loss=loss),
        "jit": partial(rs.first_nonfinite, jax.jit(partial(rs.scan, shown, reverse=reverse))),
    }[form]
    assert facts(search(ONE, CARRY, inputs(7, 2))) == (7, 2, "logarithm", "log", "forward")


@pytest.mark.slow
def test_a_progress_bar_in_a_net():
    net = rs.layer(rs.progress(cells.GRU(H), every=4))
    params = net.init(jax.random.key(0), H)
    report = rs.first_nonfinite(net, params, jnp.ones((T, N, H)).at[5, 1, 0].set(jnp.nan))
    assert (report.step, report.row, report.origin) == (5, 1, "xs")


# By the windows that have the step: the first ones, whole windows side by side, overlapping ones, and the rest.
WINDOWS = {"first": (1, 2, 2), "whole": (4, 2, 2), "overlap": (6, 3, 5), "rest": (10, 2, 3), "last": (10, 3, 5)}


@pytest.mark.parametrize(("step", "every", "back"), variants(WINDOWS, ("whole",)))
def test_a_step_in_truncated_windows_is_that_of_the_sequence(step, every, back):
    def run(params, xs):
        return rs.truncated.by_window(cell, params, CARRY, xs, every=every, back=back)

    assert facts(rs.first_nonfinite(run, ONE, inputs(step, 1))) == (step, 1, "logarithm", "log", "forward")


@pytest.mark.slow
def test_gradients_and_inputs_in_truncated_windows():
    def run(params, xs):
        return rs.truncated.by_window(cell, params, CARRY, xs, every=2, back=3)

    gradient = jax.jit(jax.value_and_grad(lambda params, xs: loss(run(params, xs))))
    assert facts(rs.first_nonfinite(gradient, ONE, inputs(7, 1))) == (7, 1, "logarithm", "log", "forward")
    report = rs.first_nonfinite(run, ONE, inputs(7, 1).at[7, 1].set(jnp.nan))
    assert (report.step, report.row, report.origin, report.index) == (7, 1, "xs", (7, 1, 0))


@pytest.mark.slow
def test_a_cotangent_in_truncated_windows_has_the_step_of_the_sequence():
    @jax.custom_vjp
    def infinite_backward(value):
        return value

    infinite_backward.defvjp(lambda value: (value, value), lambda value, ct: (ct / jnp.where(value > 4, 0.0, 1.0),))

    def planted(params, carry, x):
        carry = jnp.tanh(carry + rs.name(infinite_backward(x), "planted") * params)
        return carry, carry

    def gradient(xs):
        return jax.grad(lambda xs: loss(rs.truncated.by_window(planted, ONE, CARRY, xs, every=2, back=3)))(xs)

    report = rs.first_nonfinite(gradient, jnp.ones((T, N, H)).at[7, 2, 1].set(5))
    assert (report.step, report.row, report.primitive, report.direction) == (7, 2, "div", "backward")


@pytest.mark.slow
def test_a_net_in_truncated_windows():
    net = rs.chain(rs.layer(cells.GRU(H)), rs.layer(cells.RNN(H)))
    params = net.init(jax.random.key(0), H)
    xs = jnp.ones((T, N, H)).at[8, 1, 0].set(jnp.nan)
    report = rs.first_nonfinite(lambda xs: rs.truncated.by_window(net, params, xs, every=2, back=2)[1], xs)
    assert (report.step, report.row, report.origin) == (8, 1, "xs")


def logarithms(start):
    """It is 5, 1.6, 0.5, -0.7 and NaN."""
    carry, _ = rs.while_net(
        lambda _, carry: carry[0] < 8, lambda _, carry: (carry[0] + 1, jnp.log(carry[1])), (0, start), max_steps=30
    )
    return carry[1]


FORMS = {name: (name,) for name in ("plain", "jit", "gradient", "vmap", "tangent")}


@pytest.mark.parametrize("form", variants(FORMS, ("plain", "gradient")))
def test_a_step_of_a_while_net_is_found(form):
    functions = {
        "plain": logarithms,
        "jit": jax.jit(logarithms),
        "gradient": jax.value_and_grad(lambda start: logarithms(start).sum()),
        "vmap": jax.vmap(logarithms),
        "tangent": lambda start: jax.jvp(logarithms, (start,), (start,)),
    }
    report = rs.first_nonfinite(functions[form], jnp.array([[5.0]]))
    assert facts(report) == (3, None, "carry[1]", "log", "forward")
    assert report.operands == pytest.approx((-0.7426,), rel=1e-3)
    assert "(logarithms.<locals>.<lambda>)" in report.place


def test_a_while_net_that_ends_before_is_finite():
    # The steps after the last one would make NaN.
    function = partial(rs.while_net, lambda _, x: (x > 1).all(), lambda _, x: jnp.log(x), max_steps=30)
    assert rs.first_nonfinite(jax.value_and_grad(lambda x: function(x)[0].sum()), jnp.array([5.0])) is None
    report = rs.first_nonfinite(lambda x: jnp.log(function(x)[0] - 2), jnp.array([5.0]))
    assert (report.step, report.primitive) == (None, "log")


def stop_in_turn(params, carry, y):
    return carry.sum(1) >= jnp.array([3.0, 20.0, 10.0])


def count(params, carry, x):
    carry = carry + rs.name(jnp.sqrt(x) * params, "root")
    return carry, carry


@pytest.mark.parametrize("form", variants({name: (name,) for name in ("plain", "jit", "gradient")}, ("plain",)))
def test_a_step_of_a_scan_until_is_found_unless_the_row_has_stopped(form):
    def run(params, xs):
        return rs.scan_until(count, params, CARRY, xs, stop_in_turn, T)[:2]

    gradient = jax.value_and_grad(lambda params, xs: loss(run(params, xs)))
    function = {"plain": run, "jit": jax.jit(run), "gradient": gradient}[form]
    report = rs.first_nonfinite(function, ONE, inputs(4, 2))
    assert facts(report) == (4, 2, "root", "sqrt", "forward")
    if form != "gradient":  # 0 times NaN is NaN.
        assert rs.first_nonfinite(function, ONE, inputs(4, 0)) is None


@pytest.mark.slow
def test_a_scan_until_without_rows():
    def run(xs):
        return rs.scan_until(count, ONE, CARRY[0], xs, lambda params, carry, y: carry.sum() > 100, T)[1]

    report = rs.first_nonfinite(run, inputs(6, 0)[:, 0])
    assert (report.step, report.row, report.name, report.index) == (6, None, "root", (1,))


def test_values_are_those_of_the_loop_where_steps_are_looked_at():
    """`rnnscan.scan_observer` may change how a loop runs, but not what it returns."""
    from rnnscan.inside.nonfinite.labels import PlainScans
    from rnnscan.scan_observer import observing_scans

    xs = jnp.asarray(np.random.default_rng(0).uniform(size=(T, N, H)), jnp.float32)

    def run(xs):
        until = rs.scan_until(count, ONE, CARRY, xs, stop_in_turn, T)
        windows = rs.truncated.by_window(count, ONE, CARRY, xs, every=3, back=4)
        return until, windows, rs.while_net(lambda _, x: x.sum() < 9, lambda _, x: 2 * x + 0.1, xs[0], max_steps=9)

    with observing_scans(PlainScans()):
        observed = jax.jit(run)(xs)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), observed, run(xs))
