"""Windows of matrix states that a loop runs forward, and the chunkwise form backward, equal plain autodiff."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from exports import with_any_batch
from jaxprs import trips_of_loops
from matrix_states import LOOPED, assert_equal, compiled, decayed, linear_attention
from rnnscan.engine.costs.heuristics import using
from tiers import variants
from two_devices import MODES, on_two_devices
from zoo.case import Case


@pytest.fixture(autouse=True)
def looped():
    with using(LOOPED):
        yield


def explained(cell, *arguments, **options):
    (text,) = rs.explain(cell, *arguments, **options).states.values()
    return text


def assert_looped(cell, *arguments, **options):
    text = explained(cell, *arguments, **options)
    assert text.startswith("in chunks of 4 steps"), text
    assert text.endswith("; step by step forward"), text


def state_and_inputs(length, per_key=True):
    return jax.tree.map(jnp.asarray, decayed(length, per_key, (0.5, 0.9)))


@pytest.mark.parametrize(
    ("per_key", "named", "loops"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_with_a_decay_for_each_key_a_loop_runs_windows_forward(per_key, named, loops):
    def step(params, state, x):
        state, y = linear_attention(params, state, x)
        return state, jnp.tanh(rs.name(y, "read")) if named else y

    def loss(state, xs):
        return Case.loss(rs.scan(step, None, state, xs))

    arguments = state_and_inputs(24, per_key)
    with using(replace(LOOPED, longest_window=12)):
        assert (12 in trips_of_loops(jax.make_jaxpr(jax.grad(loss))(*arguments).jaxpr)) == loops
        assert explained(step, None, *arguments).endswith("; step by step forward") == loops


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "options",
    variants(
        {
            "plain": {},
            "reversed": {"reverse": True},
            "segments": {"memory": rs.Memory(segment=11)},
            "lengths": {"seq_lengths": jnp.array([21, 10])},
        },
        ["lengths"],
    ),
)
def test_derivatives_are_those_of_plain_autodiff(options):
    def derivatives(**options):
        def loss(scale, state, xs):
            xs = jax.tree.map(lambda leaf: scale * leaf, xs)
            return Case.loss(rs.scan(linear_attention, None, state, xs, **options))

        gradient = jax.grad(loss, argnums=(0, 1, 2))
        values = [jax.value_and_grad(loss, argnums=(0, 1, 2))(scale, state, xs)]
        values += jax.jvp(lambda scale: loss(scale, state, xs), (scale,), (jnp.ones(()),))
        values += jax.jvp(lambda scale: gradient(scale, state, xs), (scale,), (jnp.ones(()),))
        return values, jax.vmap(gradient, (0, None, None))(jnp.array([0.8, 0.9]), state, xs)

    state, xs = state_and_inputs(21)
    scale = jnp.asarray(0.9)
    assert_looped(linear_attention, None, state, xs, **options)
    own = compiled(lambda: derivatives(**options))()
    assert_equal(own, compiled(lambda: derivatives(**{**options, "memory": None}))())


# 23 steps are 8, 8 and 7; in segments of 11 steps 8 and 3, and a segment of 1 step.
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("wanted", "memory"),
    variants(
        {
            f"{wanted}, {kind}": (wanted, memory)
            for wanted in ("carry", "ys", "one of two ys")
            for kind, memory in (("whole", rs.Memory()), ("segments", rs.Memory(segment=11)))
        },
        ["carry, segments", "ys, whole", "one of two ys, segments"],
    ),
)
def test_a_loss_of_some_results_has_the_gradients_of_plain_autodiff(wanted, memory):
    def step(params, state, x):
        state, y = linear_attention(params, state, x)
        return state, (y, jnp.sin(y)) if wanted == "one of two ys" else y

    def of_scan(scan):
        def loss(state, xs):
            last, ys = scan(state, xs)
            return Case.loss({"carry": last, "ys": ys, "one of two ys": jax.tree.leaves(ys)[0]}[wanted])

        return compiled(jax.value_and_grad(loss, argnums=(0, 1)))

    arguments = state_and_inputs(23)
    assert_looped(step, None, *arguments, memory=memory)
    own = of_scan(lambda state, xs: rs.scan(step, None, state, xs, memory=memory))
    plain = of_scan(lambda state, xs: jax.lax.scan(lambda state, x: step(None, state, x), state, xs))
    assert_equal(own(*arguments), plain(*arguments))


def gated(params, state, x):
    """A gated linear attention without names."""
    query, key, value, gate = (x @ params[name] for name in ("query", "key", "value", "gate"))
    state = jax.nn.sigmoid(gate + 2)[:, :, None] * state + key[:, :, None] * value[:, None, :]
    return state, jnp.einsum("nk,nkv->nv", query, state)


STEPS, ROWS, FEATURES, KEYS, VALUES = 23, 4, 3, 4, 5


def of_gated():
    """Its parameters, a state and inputs."""
    random = np.random.default_rng(0)
    sizes = {"query": KEYS, "key": KEYS, "value": VALUES, "gate": KEYS}
    params = {name: random.normal(size=(FEATURES, size)) / 2 for name, size in sizes.items()}
    given = params, random.normal(size=(ROWS, KEYS, VALUES)), random.normal(size=(STEPS, ROWS, FEATURES))
    return jax.tree.map(jnp.asarray, given)


def scanned(params, state, xs):
    """A scan of it, which must run in looped windows wherever it is traced."""
    assert_looped(gated, params, state, xs)
    return rs.scan(gated, params, state, xs)


def training(run):
    """Loss, results and gradients of a run."""

    def loss(params, state, xs):
        results = run(params, state, xs)
        return Case.loss(results), results

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mode", MODES)
def test_two_devices_give_what_one_does(mode):
    arguments = of_gated()
    expected = compiled(training(scanned))(*arguments)
    with on_two_devices(mode, scanned, arguments) as (run, given):
        found = compiled(training(run))(*given)
    _, state, xs = given
    (_, (last, _)), (_, _, of_xs) = found
    assert last.sharding.is_equivalent_to(state.sharding, 3)
    assert of_xs.sharding.is_equivalent_to(xs.sharding, 3)
    assert_equal(found, expected)


@pytest.mark.usefixtures("x64")
def test_exported_gradients_are_the_live_ones():
    params, state, xs = of_gated()
    run = compiled(training(scanned))
    exported = jax.export.export(run)(*with_any_batch(params, state, xs))
    restored = jax.export.deserialize(exported.serialize())
    for size in (1, ROWS):
        given = params, state[:size], xs[:, :size]
        assert_equal(restored.call(*given), run(*given))


@pytest.mark.usefixtures("x64")
def test_windows_of_a_sequence_give_what_the_whole_does():
    def in_pieces(params, state, xs):
        state, first = scanned(params, state, xs[:9])
        state, second = scanned(params, state, xs[9:])
        return state, jnp.concatenate([first, second])

    arguments = of_gated()
    assert_equal(compiled(training(in_pieces))(*arguments), compiled(training(scanned))(*arguments))


@pytest.mark.usefixtures("x64")
def test_a_row_gives_what_it_does_in_a_batch():
    def first_row(params, state, xs):
        last, ys = scanned(params, state, xs)
        return last[:1], ys[:, :1]

    params, state, xs = of_gated()
    loss, (of_params, of_state, of_xs) = compiled(training(first_row))(params, state, xs)
    alone = compiled(training(scanned))(params, state[:1], xs[:, :1])
    assert_equal((loss, (of_params, of_state[:1], of_xs[:, :1])), alone)
    assert not np.any(of_state[1:])
    assert not np.any(of_xs[:, 1:])
