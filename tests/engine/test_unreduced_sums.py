"""Sums over steps whose terms are reduced: the loop adds up the values, and they are reduced once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from benchmarks.small_steps import USES
from drawn import normal
from exports import with_any_batch
from jaxprs import body_of, equations_of, is_loop, running
from tiers import variants
from two_devices import MODES, on_two_devices


STEPS, ROWS, HEADS, FEATURES = 11, 4, 3, 5


def averages(params, carry, x):
    """Moving averages with a rate for each head, which all rows and features share."""
    rate = jax.nn.sigmoid(params["rate"])[:, None]
    carry = rate * carry + (1 - rate) * x[:, None]
    return carry, jnp.tanh(carry) * params["scale"][:, None]


def arguments(dtype=float):
    random = np.random.default_rng(0)
    params = {"rate": normal(random, (HEADS,), dtype), "scale": normal(random, (HEADS,), dtype)}
    return params, normal(random, (ROWS, HEADS, FEATURES), dtype), normal(random, (STEPS, ROWS, FEATURES), dtype)


def scanned(*given, **options):
    return rs.scan(averages, *given, **options)


def training(run):
    """Loss and gradients of a run."""

    def loss(*given):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(run(*given)))

    return jax.value_and_grad(loss, argnums=(0, 1, 2))


def assert_equal(found, wanted, tolerance=1e-11):
    for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=tolerance, atol=tolerance)


def sums_of_rates(**options):
    """The types of what loops add up for the rates and the scales, and those of reductions within loops."""
    return carried_and_reduced(lambda *given: scanned(*given, **options), *arguments())


def carried_and_reduced(run, *given):
    program = running(training(run))(*given)
    loops = [*filter(is_loop, equations_of(program.jaxpr))]
    bodies = [equation for loop in loops for equation in equations_of(body_of(loop))]
    inner = [loop for loop in loops if not any(map(is_loop, body_of(loop).eqns))]
    carried = [value.aval.shape for loop in inner for value in loop.outvars[: loop.params.get("num_carry")]]
    reduced = [e for e in bodies if e.primitive.name == "reduce_sum" and e.outvars[0].aval.shape[-1:] == (HEADS,)]
    return carried, reduced


def test_the_loop_adds_up_what_is_not_reduced():
    carried, _ = sums_of_rates()
    of_carry, of_rates = 2, 2  # Forward and back; old averages and input.
    assert carried.count((ROWS, HEADS, FEATURES)) >= of_carry + of_rates
    assert (HEADS,) not in carried


def test_sums_of_many_bytes_are_reduced_first(monkeypatch):
    monkeypatch.setattr("rnnscan.engine.analysis.unreduced_sums._MOST_BYTES", 100)
    carried, reduced = sums_of_rates()
    assert (HEADS,) in carried
    assert reduced


def test_no_more_is_added_up_than_reductions_would_read():
    """The gradients of a filter's noises are sums of 8 values, of which the loop reduces most in any case."""
    use = USES["Kalman filter by division, 16 states"](STEPS)
    carried, _ = carried_and_reduced(partial(rs.scan, use.cell), use.params, use.carry, use.xs)
    forward, back, transition, chunks = 1, 1, 1, 2  # The backward pass has a loop for 8 steps, and one for the rest.
    assert carried.count((16, 16)) == forward + chunks * (back + transition)


OPTIONS = {
    "whole": {},
    "reversed": {"reverse": True},
    "chunks with a remainder": {"memory": rs.Memory(chunk=4)},
    "segments": {"memory": rs.Memory(segment=4)},
    "lengths": {"seq_lengths": jnp.array([7, STEPS, 0, 3])},
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("options", variants(OPTIONS, ["whole", "chunks with a remainder", "lengths"]))
def test_gradients_are_those_of_plain_autodiff(options):
    found, plain = (
        jax.jit(training(lambda *given, more=more: scanned(*given, **options | more)))(*arguments())
        for more in ({}, {"memory": None})
    )
    assert_equal(found, plain)


@pytest.mark.usefixtures("x64")
def test_forward_mode_is_reverse_mode():
    def loss(params):
        return training(scanned)(params, *others)[0]

    params, *others = arguments()
    along = jax.tree.map(lambda leaf: jnp.linspace(-1.0, 1.0, leaf.size), params)
    forward = jax.jit(lambda params: jax.jvp(loss, (params,), (along,))[1])(params)
    reverse = jax.jit(jax.grad(loss))(params)
    assert_equal(forward, sum(jnp.vdot(reverse[name], along[name]) for name in params))


@pytest.mark.usefixtures("x64")
def test_rows_windows_and_second_derivatives_agree():
    def windows(params, carry, xs):
        carry, first = scanned(params, carry, xs[:5])
        carry, second = scanned(params, carry, xs[5:])
        return carry, jnp.concatenate([first, second])

    def curvature(run):
        def along(params, *others):
            return jnp.vdot(training(run)(params, *others)[1][0]["rate"], jnp.arange(1.0, HEADS + 1))

        return jax.grad(along)

    given = arguments()
    wanted = jax.jit(training(scanned))(*given)
    assert_equal(jax.jit(training(windows))(*given), wanted)
    plain = jax.jit(curvature(lambda *given: scanned(*given, memory=None)))(*given)
    assert_equal(jax.jit(curvature(scanned))(*given), plain)
    each = jax.jit(jax.vmap(training(scanned), in_axes=(None, 0, 1)))(given[0], given[1][:, None], given[2][:, :, None])
    assert_equal(jax.tree.map(lambda leaf: leaf.sum(0), each[1][0]), wanted[1][0])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mode", MODES)
def test_two_devices_give_what_one_does(mode):
    wanted = jax.jit(training(scanned))(*arguments())
    with on_two_devices(mode, scanned, arguments()) as (run, given):
        assert_equal(jax.jit(training(run))(*given), wanted)


@pytest.mark.usefixtures("x64")
def test_exported_gradients_are_the_live_ones():
    params, carry, xs = arguments()
    run = jax.jit(training(scanned))
    exported = jax.export.export(run)(*with_any_batch(params, carry, xs))
    restored = jax.export.deserialize(exported.serialize())
    assert_equal(restored.call(params, carry, xs), run(params, carry, xs))


def test_sums_of_narrow_numbers_are_wide():
    given = arguments(jnp.bfloat16)
    found = jax.jit(training(scanned))(*given)[1][0]
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), given)
    wanted = jax.jit(training(scanned))(*wide)[1][0]
    assert_equal(jax.tree.map(lambda leaf: np.float32(leaf), found), wanted, tolerance=0.1)
