"""scan() against loops written from its meaning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import rnnscan as rs
from rnnscan.checkpointing import NestedScan, SubScan
from scanned import MEMORIES, value_and_gradients
from slow_reference import arguments, assert_close, cell, loop, loss
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64", "engine")


@functools.cache
def reference(length, **options):
    """The loop's results and gradients; not compiled, because XLA takes long over a loop that is written out."""
    with jax.enable_x64(True):
        return value_and_gradients(functools.partial(loop, cell, **options), *arguments(0, length, 3), jit=False)


@pytest.mark.core("as `lax.scan`")
@pytest.mark.parametrize(
    ("engine", "choice", "length"),
    variants(
        {
            f"{engine}, {choice}, {length}": (engine, choice, length)
            for engine in ("lax", "auto")
            for length in (1, 6, 7)
            for choice in MEMORIES
        },
        # Those that differ the most, where the length does not divide.
        [
            "auto, recompute all, 7",
            "auto, nested segments, 7",
            "auto, keep names, 1",
        ],
    ),
    indirect=["engine"],
)
def test_equals_the_loop_under_every_memory_choice(engine, choice, length):
    run = functools.partial(rs.scan, cell, memory=MEMORIES[choice])
    assert_close(value_and_gradients(run, *arguments(0, length, 3)), reference(length))


@pytest.mark.core("memory choices")
@pytest.mark.parametrize("reverse", variants([False, True], [True]))
@pytest.mark.parametrize("recompute", variants([(), "all"], ["all"]))
def test_equals_the_loop_under_a_schedule_of_several_scans(recompute, reverse):
    parts = (SubScan(3, (2,)), SubScan(2, None), SubScan(2, (1,)))
    memory = rs.Memory(recompute=recompute, segment=NestedScan(parts))
    run = functools.partial(rs.scan, cell, memory=memory, reverse=reverse)
    assert_close(value_and_gradients(run, *arguments(0, 7, 3)), reference(7, reverse=reverse))


@pytest.mark.core("memory choices")
@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["segments that do not divide"]))
def test_reverse_equals_the_loop_under_every_memory_choice(choice):
    run = functools.partial(rs.scan, cell, memory=MEMORIES[choice], reverse=True)
    assert_close(value_and_gradients(run, *arguments(0, 7, 3)), reference(7, reverse=True))


@pytest.mark.core("as `lax.scan`")
@pytest.mark.parametrize("unroll", variants([2, 3, True], [3]))
def test_unrolled_equals_the_loop(unroll):
    run = functools.partial(rs.scan, cell, unroll=unroll, memory=rs.Memory(segment=5))
    assert_close(value_and_gradients(run, *arguments(0, 7, 3)), reference(7))


@pytest.mark.core("as `lax.scan`")
@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["keep names", "nested segments"]))
def test_a_sequence_of_no_steps_returns_the_carry(choice):
    params, carry, xs = arguments(0, 0, 3)
    run = functools.partial(rs.scan, cell, memory=MEMORIES[choice])
    (final, ys), (params_gradient, carry_gradient, _) = value_and_gradients(run, params, carry, xs)
    assert_close(final, carry)
    assert {name: y.shape for name, y in ys.items()} == {"out": (0, 3, 2), "count": (0, 3)}
    assert_close(params_gradient, jax.tree.map(jnp.zeros_like, params))
    assert_close(carry_gradient["hidden"], jax.grad(lambda hidden: loss({"hidden": hidden}))(carry["hidden"]))


# Each is nothing but a loop, which runs in parallel.
ONLY_A_LOOP = {
    "affine": lambda params, carry, x: (params * carry + x, None),
    "delay": lambda params, carry, x: (params * x, carry),
    "clamped": lambda params, carry, x: (jnp.maximum(carry + params, x), carry),
}


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ONLY_A_LOOP)
def test_a_recurrence_of_no_steps_returns_the_carry(name, platform):
    def total(params, carry):
        final, _ = rs.scan(ONLY_A_LOOP[name], params, carry, jnp.zeros((0, 2, 3)), reverse=True)
        return jnp.sum(final), final

    params, carry = jnp.full(3, 0.5), jnp.ones((2, 3))
    with rs.tuned_for(platform):
        (_, final), gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(params, carry)
    assert_close((final, *gradients), (carry, jnp.zeros(3), jnp.ones((2, 3))))


@pytest.mark.core("as `lax.scan`")
@pytest.mark.large_loops
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(segment=2)], ids=str)
def test_second_derivatives_of_no_steps_are_those_of_lax_scan(memory, reverse):
    """The outputs repeat the carry, as those of an LSTM do."""

    def step(params, carry, x):
        hidden, decayed = carry
        hidden = jnp.tanh(hidden @ params + x)
        return (hidden, decayed * hidden), hidden

    def hessian(scan):
        def total(params, carry, xs):
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(scan(params, carry, xs)))

        carry = jnp.ones((2, 3)), jnp.full((2, 3), 2.0)
        return jax.hessian(total, (0, 1, 2))(jnp.eye(3), carry, jnp.zeros((0, 2, 3)))

    actual = hessian(functools.partial(rs.scan, step, memory=memory, reverse=reverse))
    expected = hessian(lambda params, *rest: jax.lax.scan(functools.partial(step, params), *rest, reverse=reverse))
    assert_close(actual, expected)


def random_options(seed):
    """Options of scan at random, the same for a seed: replay a failure by its seed."""
    random = np.random.default_rng(seed)
    length, batch = int(random.choice([1, 5, 7])), int(random.choice([1, 3]))
    options = {"reverse": bool(random.integers(2)), "padding": str(random.choice(["zero", "hold", "drop"]))}
    valid = reset = None
    match random.integers(3):
        case 0:
            lengths = np.minimum(random.integers(0, length + 3, size=batch), length)
            options["seq_lengths"] = jnp.asarray(lengths)
            valid = np.arange(length)[:, None] < lengths
        case 1:
            valid = random.random((length, batch)) < 0.6
            options["mask"] = jnp.asarray(valid)
    if random.integers(2):
        reset = random.random((length, batch)) < 0.3
        options["reset"] = jnp.asarray(reset)
        options["reset_to"] = arguments(seed + 1000, length, batch)[1]
    if random.integers(2):
        options["truncate"] = int(random.integers(1, length + 2))
    choices = list(MEMORIES.values())
    options["memory"] = choices[random.integers(len(choices))]
    return length, batch, options, valid, reset


# In the four seeds of `make test` every option occurs, and every padding.
@pytest.mark.parametrize("seed", variants(range(20), [0, 5, 14, 18]))
def test_options_at_random_equal_the_loop(seed):
    length, batch, options, valid, reset = random_options(seed)
    given = arguments(seed, length, batch)
    same = {name: options[name] for name in ("reverse", "padding", "truncate", "reset_to") if name in options}
    looped = functools.partial(loop, cell, valid=valid, reset=reset, **same)
    expected = value_and_gradients(looped, *given, jit=False)
    assert_close(value_and_gradients(functools.partial(rs.scan, cell, **options), *given), expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 400))
def test_more_options_at_random_equal_the_loop(seed):
    test_options_at_random_equal_the_loop(seed)


@pytest.mark.core("derivatives")
@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["recompute all"]))
def test_gradients_equal_finite_differences(choice):
    params, carry, xs = arguments(0, 5, 2)

    def run(params, hidden, signal):
        return loss(
            rs.scan(cell, params, {**carry, "hidden": hidden}, {**xs, "signal": signal}, memory=MEMORIES[choice])
        )

    check_grads(jax.jit(run), (params, carry["hidden"], xs["signal"]), order=1, modes=["rev"], rtol=1e-6)


@pytest.mark.core("derivatives")
@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["segments"]))
def test_forward_mode_equals_finite_differences(choice):
    params, carry, xs = arguments(0, 5, 2)

    def run(params):
        return loss(rs.scan(cell, params, carry, xs, memory=MEMORIES[choice]))

    check_grads(jax.jit(run), (params,), order=1, modes=["fwd"], rtol=1e-6)


@pytest.mark.core("derivatives")
@pytest.mark.parametrize("choice", variants(["plain autodiff", "recompute one", "nested segments"], ["recompute one"]))
def test_gradients_of_gradients_equal_finite_differences(choice):
    params, carry, xs = arguments(0, 5, 2)

    @jax.jit
    def slope(bias):
        run = lambda bias: loss(rs.scan(cell, {**params, "bias": bias}, carry, xs, memory=MEMORIES[choice]))  # noqa: E731
        return jnp.sum(jnp.sin(jax.grad(run)(bias)))

    check_grads(slope, (params["bias"],), order=1, modes=["rev"], rtol=1e-6)


@pytest.mark.core("windows equal the whole")
def test_chunks_that_pass_the_carry_on_equal_the_whole():
    params, carry, xs = arguments(0, 7, 3)

    def chunked(params, carry, xs):
        parts = []
        for steps in (slice(0, 3), slice(3, 4), slice(4, 7)):
            carry, ys = rs.scan(cell, params, carry, jax.tree.map(lambda leaf, steps=steps: leaf[steps], xs))
            parts.append(ys)
        return carry, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    assert_close(value_and_gradients(chunked, params, carry, xs), reference(7))


@pytest.mark.core("as `lax.scan`")
def test_an_output_does_not_depend_on_later_inputs():
    params, carry, xs = arguments(0, 6, 1)
    outputs = lambda signal: rs.scan(cell, params, carry, {**xs, "signal": signal})[1]["out"]  # noqa: E731
    jacobian = jax.jit(jax.jacrev(outputs))(xs["signal"])
    depends = np.any(np.asarray(jacobian) != 0, axis=(1, 2, 4, 5))
    np.testing.assert_array_equal(depends, np.tril(np.ones((6, 6), bool)))


@pytest.mark.core("as `lax.scan`")
def test_rows_do_not_mix():
    params, carry, xs = arguments(0, 6, 3)
    order = jnp.array([2, 0, 1])
    rows = lambda tree, axis: jax.tree.map(lambda leaf: jnp.take(leaf, order, axis) if leaf.ndim > axis else leaf, tree)  # noqa: E731
    lengths = jnp.array([6, 2, 4])
    final, ys = rs.scan(cell, params, carry, xs, seq_lengths=lengths)
    permuted = rs.scan(cell, params, rows(carry, 0), rows(xs, 1), seq_lengths=lengths[order])
    assert_close(permuted, (rows(final, 0), rows(ys, 1)))


@pytest.mark.core("lengths and resets")
@pytest.mark.parametrize(
    ("padding", "memory"),
    variants(
        {
            f"{padding}, {memory}": (padding, memory)
            for memory in (None, rs.Memory(), rs.Memory(segment=2))
            for padding in ("zero", "hold", "drop")
        },
        ["zero, Memory()", "hold, Memory(segment=2)"],
    ),
)
def test_nan_in_the_padding_reaches_neither_values_nor_gradients(padding, memory):
    params, carry, xs = arguments(0, 5, 3)
    lengths = jnp.array([0, 3, 4])
    padded = jnp.arange(5)[:, None] >= lengths
    nan_where = lambda where, leaf: jnp.where(where, jnp.nan, leaf)  # noqa: E731
    spoilt = {
        **xs,
        "signal": nan_where(padded[:, :, None], xs["signal"]),
        "scale": nan_where(padded.all(1), xs["scale"]),
    }
    run = functools.partial(rs.scan, cell, seq_lengths=lengths, padding=padding, memory=memory)
    compiled = jax.jit(functools.partial(value_and_gradients, run, jit=False))
    clean_result, clean_gradients = compiled(params, carry, xs)
    result, gradients = compiled(params, carry, spoilt)
    assert_close(result, clean_result, tolerance=0)
    assert_close(gradients, clean_gradients, tolerance=0)
    assert np.any(np.asarray(padded.all(1)))
    assert not np.any(np.asarray(gradients[2]["signal"])[np.asarray(padded)])


@pytest.mark.core("lengths and resets")
def test_a_length_of_zero_leaves_the_carry_and_a_zero_output():
    params, carry, xs = arguments(0, 5, 2)
    final, ys = rs.scan(cell, params, carry, xs, seq_lengths=jnp.array([0, 5]))
    np.testing.assert_array_equal(final["hidden"][0], carry["hidden"][0])
    assert not np.any(ys["out"][:, 0])
    assert np.all(ys["out"][:, 1] != 0)


@pytest.mark.core("lengths and resets")
def test_lengths_and_their_mask_are_the_same():
    params, carry, xs = arguments(0, 5, 3)
    lengths = jnp.array([0, 3, 5])
    by_mask = rs.scan(cell, params, carry, xs, mask=jnp.arange(5)[:, None] < lengths)
    assert_close(rs.scan(cell, params, carry, xs, seq_lengths=lengths), by_mask, tolerance=0)


@pytest.mark.core("lengths and resets")
def test_traced_lengths_are_not_checked_and_count_as_zero_and_all_steps():
    params, carry, xs = arguments(0, 5, 3)
    run = jax.jit(lambda lengths: rs.scan(cell, params, carry, xs, seq_lengths=lengths))
    assert_close(run(jnp.array([-2, 3, 7])), run(jnp.array([0, 3, 5])), tolerance=0)


@pytest.mark.core("lengths and resets")
def test_resets_are_runs_of_their_own():
    params, carry, xs = arguments(0, 7, 2)
    reset = jnp.zeros((7, 2), bool).at[3].set(True)
    _, ys = rs.scan(cell, params, carry, xs, reset=reset, reset_to=carry)
    parts = [
        rs.scan(cell, params, carry, jax.tree.map(lambda leaf, steps=steps: leaf[steps], xs))[1]
        for steps in (slice(0, 3), slice(3, 7))
    ]
    assert_close(ys, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts))


@pytest.mark.core("lengths and resets")
def test_truncation_cuts_the_gradient_and_not_the_values():
    params, carry, xs = arguments(0, 6, 2)
    whole = rs.scan(cell, params, carry, xs)
    assert_close(rs.scan(cell, params, carry, xs, truncate=2), whole, tolerance=0)

    def last_output(signal):
        return rs.scan(cell, params, carry, {**xs, "signal": signal}, truncate=2)[1]["out"][5].sum()

    reached = np.any(np.asarray(jax.jit(jax.grad(last_output))(xs["signal"])), axis=(1, 2))
    np.testing.assert_array_equal(reached, [False, False, False, False, True, True])


@pytest.mark.core("as `lax.scan`")
def test_without_inputs_the_length_says_how_often():
    final, ys = rs.scan(lambda params, carry, x: (carry * params, carry), 2.0, 1.0, None, length=4)
    assert float(final) == 16.0
    np.testing.assert_array_equal(ys, [1.0, 2.0, 4.0, 8.0])


@pytest.mark.core("as `lax.scan`")
def test_the_output_may_be_none():
    final, ys = rs.scan(lambda params, carry, x: (carry + x, None), None, jnp.zeros(2), jnp.ones((3, 2)))
    assert ys is None
    np.testing.assert_array_equal(final, [3.0, 3.0])


@pytest.mark.core("as `lax.scan`")
def test_plain_autodiff_is_lax_scan():
    params, carry, xs = arguments(0, 5, 2)
    expected = lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)
    assert_close(rs.scan(cell, params, carry, xs, memory=None), expected, tolerance=0)
