"""scan() with keys, Python numbers and NumPy arrays, and with integers of any dtype."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from slow_reference import arguments, assert_close, cell, loss
from tiers import variants


pytestmark = [pytest.mark.core("dtypes"), pytest.mark.usefixtures("x64", "engine")]


@pytest.mark.parametrize("memory", variants([None, rs.Memory(), rs.Memory(segment=4)], [rs.Memory(segment=4)]), ids=str)
def test_keys_in_carry_inputs_and_outputs(memory):
    def noisy(params, carry, x):
        key, hidden = carry
        key, use = jax.random.split(key)
        hidden = jnp.tanh(params * hidden + jax.random.normal(use, hidden.shape) + jax.random.normal(x, hidden.shape))
        return (key, hidden), (hidden, use)

    keys = jax.random.split(jax.random.key(1), 6)

    def run(params, memory):
        (_, hidden), (ys, uses) = rs.scan(noisy, params, (jax.random.key(0), jnp.zeros(3)), keys, memory=memory)
        return hidden, ys, jax.random.key_data(uses)

    def of(memory):
        def loss_and_results(params):
            results = run(params, memory)
            return loss(results[:2]), results

        return jax.jit(jax.value_and_grad(loss_and_results, has_aux=True))(0.5)

    assert_close(of(memory), of(None))


def test_keys_of_rows_are_held_over_padding():
    def noisy(params, keys, x):
        split = jax.vmap(jax.random.split)(keys)
        return split[:, 0], x + jax.vmap(jax.random.normal)(split[:, 1])

    keys = jax.random.split(jax.random.key(0), 2)
    final, ys = rs.scan(noisy, None, keys, jnp.zeros((5, 2)), seq_lengths=jnp.array([0, 3]))
    np.testing.assert_array_equal(jax.random.key_data(final[0]), jax.random.key_data(keys[0]))
    shorter, shorter_ys = rs.scan(noisy, None, keys, jnp.zeros((3, 2)))
    np.testing.assert_array_equal(jax.random.key_data(final[1]), jax.random.key_data(shorter[1]))
    np.testing.assert_array_equal(ys[:3, 1], shorter_ys[:, 1])


def test_python_numbers_in_the_carry_take_the_dtype_of_what_they_meet():
    def shift(params, carry, x):
        newest, older, oldest, count = carry
        return (x, newest, older, count + 1), oldest

    final, ys = rs.scan(shift, None, (0.0, 0.0, 0.0, 0), jnp.ones(5, jnp.bfloat16))
    assert [leaf.dtype for leaf in final[:3]] == [jnp.bfloat16] * 3
    assert int(final[3]) == 5
    np.testing.assert_array_equal(ys.astype(jnp.float32), [0, 0, 0, 1, 1])


def test_weak_types_are_those_of_lax_scan():
    step = lambda carry, x: (carry, carry * x)  # noqa: E731
    xs = jnp.ones(3, jnp.bfloat16)
    expected = lax.scan(step, 1.0, xs)
    actual = rs.scan(lambda _, carry, x: step(carry, x), None, 1.0, xs)
    assert actual[1].dtype == expected[1].dtype == jnp.bfloat16
    assert jax.typeof(actual[0]).weak_type == jax.typeof(expected[0]).weak_type


def test_lengths_of_any_integer_dtype():
    lengths = [0, 2, 250]
    for dtype in (jnp.int8, jnp.uint8, jnp.uint32, jnp.int64):
        given = jnp.asarray(np.array(lengths).clip(max=jnp.iinfo(dtype).max), dtype)
        _, ys = rs.scan(lambda p, c, x: (c, x), None, jnp.zeros(3), jnp.ones((300, 3)), seq_lengths=given)
        np.testing.assert_array_equal(ys.sum(0), given)
    huge = jnp.array([3_000_000_000, 0, 1], jnp.uint32)
    run = jax.jit(lambda n: rs.scan(lambda p, c, x: (c, x), None, jnp.zeros(3), jnp.ones((5, 3)), seq_lengths=n))
    with jax.enable_x64(False):
        _, ys = run(huge)
    np.testing.assert_array_equal(ys.sum(0), [5, 0, 1])


@pytest.mark.bad_input  # For the annotations, which say int.
def test_numpy_integers_are_numbers_of_steps():
    given = arguments(0, 5, 2)
    memory = rs.Memory(segment=np.int64(2))
    options = {"length": np.int32(5), "unroll": np.int64(2), "truncate": np.int64(2)}
    assert_close(rs.scan(cell, *given, memory=memory, **options), rs.scan(cell, *given, truncate=2))


def test_numpy_arrays_are_taken():
    final, _ = rs.scan(lambda params, carry, x: (carry + x, None), None, np.zeros(2), np.ones((3, 2)))
    np.testing.assert_array_equal(final, [3.0, 3.0])


@pytest.mark.parametrize("from_carry", [False, True])
def test_keys_whose_draws_differ_under_vmap_are_drawn_step_by_step(from_carry):
    """What is computed again for a chunk of steps must be what the forward pass drew."""
    weight, start = jnp.linspace(-1.0, 1.0, 16).reshape(4, 4), jnp.ones((3, 4))
    key = jax.random.key(0, impl="rbg")

    def cell(weight, carry, key_of_step):
        hidden, count = carry
        drawn_from = jax.random.fold_in(key, count) if from_carry else key_of_step
        kept = jax.random.bernoulli(drawn_from, 0.5, hidden.shape)
        hidden = jnp.tanh(jnp.where(kept, hidden, 0) @ weight + 1)
        return (hidden, count + 1), hidden

    def total(weight, memory=rs.Memory(recompute="all")):
        return (rs.scan(cell, weight, (start, 0), jax.random.split(key, 6), memory=memory)[1] ** 2).sum()

    assert_close(*(jax.jit(jax.grad(run))(weight) for run in (total, functools.partial(total, memory=None))))


@pytest.mark.parametrize("memory", variants([rs.Memory(), rs.Memory(segment=3)], [rs.Memory(segment=3)]), ids=str)
@pytest.mark.parametrize("narrow", ["params", "carry", "xs"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float8_e4m3fn", 0.13), ("float8_e5m2", 0.25)])
def test_gradients_of_floats_of_8_bits(dtype, tolerance, narrow, memory):
    """JAX promotes them to no other dtype. The sums of the parameters' gradients are made in float32."""

    def cell(params, carry, x):
        wide = [leaf.astype(jnp.float32) for leaf in (params["kernel"], params["bias"], carry, x)]
        hidden = jnp.tanh(wide[2] @ wide[0] + wide[1] * wide[3]).astype(carry.dtype)
        return hidden, hidden

    def loss(scan, params, carry, xs):
        carry, ys = scan(params, carry, xs)
        return jnp.sum(carry.astype(jnp.float32) ** 2) + jnp.sum(jnp.sin(ys.astype(jnp.float32)))

    random = np.random.default_rng(0)
    operands = {
        "params": {
            "kernel": jnp.asarray(random.normal(size=(3, 3)) / 2),
            "bias": jnp.asarray(random.normal(size=3) / 2),
        },
        "carry": jnp.asarray(random.normal(size=(2, 3)) / 2),
        "xs": jnp.asarray(random.normal(size=(7, 2, 3)) / 2),
    }
    operands = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), operands)
    operands[narrow] = jax.tree.map(lambda leaf: leaf.astype(dtype), operands[narrow])
    params, carry, xs = (operands[name] for name in ("params", "carry", "xs"))

    def gradients(scan, params):
        return jax.jit(jax.grad(lambda *given: loss(scan, *given), (0, 1, 2)))(params, carry, xs)

    actual = gradients(lambda *given: rs.scan(cell, *given, memory=memory), params)
    # In float32, because `lax.scan` rounds the sums of the parameters' gradients to 8 bits at every step.
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    expected = gradients(lambda params, *given: jax.lax.scan(lambda *step: cell(params, *step), *given), wide)
    assert [leaf.dtype for leaf in jax.tree.leaves(actual)] == [leaf.dtype for leaf in (*params.values(), carry, xs)]
    for own, leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        own, leaf = (np.asarray(array, np.float32) for array in (own, leaf))
        np.testing.assert_allclose(own, leaf, atol=tolerance * np.max(np.abs(leaf)))


def test_numbers_that_stop_gradient_returns_are_parameters_and_carries():
    """They have a dtype, as arrays have."""

    def cell(params, carry, x):
        return carry * params["fixed"] * params["trained"] + x, carry

    def loss(trained, run):
        params = {"fixed": jax.lax.stop_gradient(0.5), "trained": trained}
        return jnp.sum(run(cell, params, jax.lax.stop_gradient(0.1), jnp.arange(6.0))[1])

    def plain(cell, params, carry, xs):
        return jax.lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)

    by_window = functools.partial(rs.truncated.by_window, every=2, back=6)
    for run in (rs.scan, by_window):
        got, expected = (jax.value_and_grad(loss)(1.5, each) for each in (run, plain))
        np.testing.assert_allclose(got, expected, rtol=1e-6)
