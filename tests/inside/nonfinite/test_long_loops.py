"""Long loops: the step is that of a walk through every step, and steps that repeat are passed over."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan import cells
from rnnscan.inside.nonfinite import loops, steps
from rnnscan.inside.nonfinite.walk import walk_back
from tiers import variants


def decayed(params, carry, x):
    return 0.5 * carry + x * params, jnp.tanh(carry)


def reset(params, carry, x):
    """Every tenth step forgets, so that values that are not finite end there."""
    count, h = carry
    h = jnp.where(count % 10 == 0, jnp.zeros_like(h), h)
    return (count + 1, jnp.tanh(h * params) + x), h


def branching(params, carry, x):
    h = lax.cond(carry[0] > 0, lambda h: h * params, lambda h: jnp.log(jnp.exp(h)), carry)
    return 0.9 * h + x, h


def overflowing(params, carry, x):
    """An infinity at each step, of which NaN comes later."""
    return 0.5 * carry + x * params, jnp.exp(200 * jnp.abs(x)) - carry


def repeating(params, carry, x):
    """NaN of its own at each step from the first negative input on."""
    return jnp.minimum(carry, x.sum()), jnp.sqrt(carry) * params


def indexed(params, carry, x):
    index = jnp.argmax(jnp.nan_to_num(carry))
    return jnp.roll(carry, 1) * params + x, carry[index]


def masked(params, carry, x):
    scores = jnp.where(jnp.arange(4) < 3, carry * params, -jnp.inf)
    return 0.5 * carry + x, jnp.max(scores) + jax.nn.logsumexp(scores)


STEPS = {
    "decayed": (decayed, jnp.zeros(4)),
    "reset": (reset, (jnp.int32(1), jnp.zeros(4))),
    "branching": (branching, jnp.ones(4)),
    "overflowing": (overflowing, jnp.zeros(4)),
    "repeating": (repeating, jnp.float32(9)),
    "indexed": (indexed, jnp.zeros(4)),
    "masked": (masked, jnp.zeros(4)),
}
# (length, steps with NaN, reverse)
CASES = [(70, (40,), False), (70, (3, 35), True), (64, (62,), False), (33, (0, 32), True), (100, (17, 65), False)]


@pytest.mark.parametrize("case", variants(CASES, CASES[1:2]))
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("is_gradient", [False, True])
def test_the_report_is_that_of_a_walk_through_every_step(name, case, is_gradient):
    (step, carry), (length, places, reverse) = STEPS[name], case
    xs = jnp.asarray(np.random.default_rng(length).normal(size=(length, 4)), jnp.float32)
    xs = jnp.abs(xs).at[jnp.array(places)].set(-1.0 if name == "repeating" else jnp.nan)
    params = jnp.asarray([1e30, 1.0, 0.5, 2.0]) if name == "overflowing" else jnp.asarray([0.5, 1.0, -0.5, 2.0])

    def loss(params, xs):
        final, ys = lax.scan(lambda carry, x: step(params, carry, x), carry, xs, reverse=reverse)
        return jnp.sum(jnp.sin(ys)) + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(final))

    function = jax.value_and_grad(loss) if is_gradient else loss
    found = rs.first_nonfinite(function, params, xs)
    with mock.patch.object(steps.Steps, "first_alike", lambda self, step, masks: step):
        slow = rs.first_nonfinite(function, params, xs)
    assert found == slow or str(found) == str(slow)
    if name in ("decayed", "indexed", "masked"):
        assert found.step is None
        assert found.index[0] == min(places)
    if name == "repeating":
        assert found.step == (max(places) - 1 if reverse else min(places) + 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_that_repeat_are_not_walked(reverse):
    cell = cells.LSTM(4)
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(2_000, 2, 3)), jnp.float32).at[1_000, 1, 0].set(jnp.inf)
    params = cell.init(jax.random.key(0), 3)

    def loss(params, xs):
        return jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, reverse=reverse)[1])

    with mock.patch.object(loops, "walk_back", wraps=walk_back) as walked:
        report = rs.first_nonfinite(jax.value_and_grad(loss), params, xs)
    assert (report.step, report.row) == (1_000, 1)
    assert walked.call_count < 20


def test_a_carry_of_a_key_and_dropout():
    def step(carry, x):
        key, h = carry
        key, now = jax.random.split(key)
        h = jnp.tanh(h + x) * jax.random.bernoulli(now, 0.5, h.shape)
        return (key, h), h

    xs = jnp.ones((100, 8)).at[50].set(jnp.nan)
    report = rs.first_nonfinite(lambda xs: lax.scan(step, (jax.random.key(0), jnp.zeros(8)), xs)[1].sum(), xs)
    assert report.index[0] == 50


def test_only_the_carry_before_each_window_is_kept():
    kept = []
    run = steps.StepRunner.run

    def noted(self, operands, length):
        made = run(self, operands, length)
        kept.append(([leaf.shape[0] for leaf in made.starts], made.size))
        return made

    with mock.patch.object(steps.StepRunner, "run", noted):
        xs = jnp.ones((1_000, 4)).at[999].set(jnp.nan)
        rs.first_nonfinite(lambda xs: lax.scan(lambda h, x: (0.5 * h + x, None), jnp.zeros(4), xs)[0], xs)
    assert kept == [([32], 32)]
