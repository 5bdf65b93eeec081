"""scan() against loops written from its meaning, and its freedom: any pytree, any transformation."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from jax.test_util import check_grads

import rnnscan as rs
from rnnscan.checkpointing import NestedScan, SubScan
from rnnscan.insight import kept_bytes
from slow_reference import arguments, assert_close, cell, loop, loss
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(params=variants(["lax", "auto"], ["auto"]), autouse=True)
def engine(request, monkeypatch):
    """Every test runs with either engine, in `make test` the lax engine in few."""
    monkeypatch.setattr(rs, "scan", functools.partial(rs.scan, engine=request.param))
    return request.param


MEMORIES = {
    "plain autodiff": None,
    "keep names": rs.Memory(),
    "recompute one": rs.Memory(recompute=("preactivation",)),
    "recompute all": rs.Memory(recompute="all"),
    "segments": rs.Memory(segment=3),
    "segments that do not divide": rs.Memory(segment=4, recompute=("gate",)),
    "segment longer than T": rs.Memory(segment=100),
    "square root": rs.Memory(segment="sqrt"),
    "nested segments": rs.Memory(segment=(4, 2)),
}


def value_and_gradients(run, *arguments, jit=True):
    """The results of a run and the gradients of a loss of them, in params, carry and xs."""

    def compute(*arguments):
        result = run(*arguments)
        return loss(result), result

    differentiate = jax.value_and_grad(compute, argnums=(0, 1, 2), has_aux=True, allow_int=True)
    (_, result), gradients = (jax.jit(differentiate) if jit else differentiate)(*arguments)
    return result, gradients


@functools.cache
def reference(length, **options):
    """The loop's results and gradients; not compiled, because XLA takes long over a loop that is written out."""
    with jax.enable_x64(True):
        return value_and_gradients(functools.partial(loop, cell, **options), *arguments(0, length, 3), jit=False)


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


@pytest.mark.parametrize("reverse", variants([False, True], [True]))
@pytest.mark.parametrize("recompute", variants([(), "all"], ["all"]))
def test_equals_the_loop_under_a_schedule_of_several_scans(recompute, reverse):
    parts = (SubScan(3, (2,)), SubScan(2, None), SubScan(2, (1,)))
    memory = rs.Memory(recompute=recompute, segment=NestedScan(parts))
    run = functools.partial(rs.scan, cell, memory=memory, reverse=reverse)
    assert_close(value_and_gradients(run, *arguments(0, 7, 3)), reference(7, reverse=reverse))


@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["segments that do not divide"]))
def test_reverse_equals_the_loop_under_every_memory_choice(choice):
    run = functools.partial(rs.scan, cell, memory=MEMORIES[choice], reverse=True)
    assert_close(value_and_gradients(run, *arguments(0, 7, 3)), reference(7, reverse=True))


@pytest.mark.parametrize("unroll", variants([2, 3, True], [3]))
def test_unrolled_equals_the_loop(unroll):
    run = functools.partial(rs.scan, cell, unroll=unroll, memory=rs.Memory(segment=5))
    assert_close(value_and_gradients(run, *arguments(0, 7, 3)), reference(7))


@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["keep names", "nested segments"]))
def test_a_sequence_of_no_steps_returns_the_carry(choice):
    params, carry, xs = arguments(0, 0, 3)
    run = functools.partial(rs.scan, cell, memory=MEMORIES[choice])
    (final, ys), (params_gradient, carry_gradient, _) = value_and_gradients(run, params, carry, xs)
    assert_close(final, carry)
    assert {name: y.shape for name, y in ys.items()} == {"out": (0, 3, 2), "count": (0, 3)}
    assert_close(params_gradient, jax.tree.map(jnp.zeros_like, params))
    assert_close(carry_gradient["hidden"], jax.grad(lambda hidden: loss({"hidden": hidden}))(carry["hidden"]))


def random_options(seed):
    """Options of scan at random, the same for a seed: replay a failure by its seed."""
    random = np.random.default_rng(seed)
    length, batch = int(random.choice([1, 5, 7])), int(random.choice([1, 3]))
    options = {"reverse": bool(random.integers(2)), "padding": str(random.choice(["zero", "hold", "drop"]))}
    valid = reset = None
    match random.integers(3):
        case 0:
            lengths = random.integers(0, length + 3, size=batch)
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


@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["recompute all"]))
def test_gradients_equal_finite_differences(choice):
    params, carry, xs = arguments(0, 5, 2)

    def run(params, hidden, signal):
        return loss(
            rs.scan(cell, params, {**carry, "hidden": hidden}, {**xs, "signal": signal}, memory=MEMORIES[choice])
        )

    check_grads(jax.jit(run), (params, carry["hidden"], xs["signal"]), order=1, modes=["rev"], rtol=1e-6)


@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["segments"]))
def test_forward_mode_equals_finite_differences(choice):
    params, carry, xs = arguments(0, 5, 2)

    def run(params):
        return loss(rs.scan(cell, params, carry, xs, memory=MEMORIES[choice]))

    check_grads(jax.jit(run), (params,), order=1, modes=["fwd"], rtol=1e-6)


@pytest.mark.parametrize("choice", variants(["plain autodiff", "recompute one", "nested segments"], ["recompute one"]))
def test_gradients_of_gradients_equal_finite_differences(choice):
    params, carry, xs = arguments(0, 5, 2)

    @jax.jit
    def slope(bias):
        run = lambda bias: loss(rs.scan(cell, {**params, "bias": bias}, carry, xs, memory=MEMORIES[choice]))  # noqa: E731
        return jnp.sum(jnp.sin(jax.grad(run)(bias)))

    check_grads(slope, (params["bias"],), order=1, modes=["rev"], rtol=1e-6)


def test_chunks_that_pass_the_carry_on_equal_the_whole():
    params, carry, xs = arguments(0, 7, 3)

    def chunked(params, carry, xs):
        parts = []
        for steps in (slice(0, 3), slice(3, 4), slice(4, 7)):
            carry, ys = rs.scan(cell, params, carry, jax.tree.map(lambda leaf, steps=steps: leaf[steps], xs))
            parts.append(ys)
        return carry, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    assert_close(value_and_gradients(chunked, params, carry, xs), reference(7))


def test_an_output_does_not_depend_on_later_inputs():
    params, carry, xs = arguments(0, 6, 1)
    outputs = lambda signal: rs.scan(cell, params, carry, {**xs, "signal": signal})[1]["out"]  # noqa: E731
    jacobian = jax.jit(jax.jacrev(outputs))(xs["signal"])
    depends = np.any(np.asarray(jacobian) != 0, axis=(1, 2, 4, 5))
    np.testing.assert_array_equal(depends, np.tril(np.ones((6, 6), bool)))


def test_rows_do_not_mix():
    params, carry, xs = arguments(0, 6, 3)
    order = jnp.array([2, 0, 1])
    rows = lambda tree, axis: jax.tree.map(lambda leaf: jnp.take(leaf, order, axis) if leaf.ndim > axis else leaf, tree)  # noqa: E731
    lengths = jnp.array([6, 2, 4])
    final, ys = rs.scan(cell, params, carry, xs, seq_lengths=lengths)
    permuted = rs.scan(cell, params, rows(carry, 0), rows(xs, 1), seq_lengths=lengths[order])
    assert_close(permuted, (rows(final, 0), rows(ys, 1)))


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


def test_a_length_of_zero_leaves_the_carry_and_a_zero_output():
    params, carry, xs = arguments(0, 5, 2)
    final, ys = rs.scan(cell, params, carry, xs, seq_lengths=jnp.array([0, 5]))
    np.testing.assert_array_equal(final["hidden"][0], carry["hidden"][0])
    assert not np.any(ys["out"][:, 0])
    assert np.all(ys["out"][:, 1] != 0)


def test_lengths_and_their_mask_are_the_same():
    params, carry, xs = arguments(0, 5, 3)
    lengths = jnp.array([0, 3, 7])
    by_mask = rs.scan(cell, params, carry, xs, mask=jnp.arange(5)[:, None] < lengths)
    assert_close(rs.scan(cell, params, carry, xs, seq_lengths=lengths), by_mask, tolerance=0)


def test_resets_are_runs_of_their_own():
    params, carry, xs = arguments(0, 7, 2)
    reset = jnp.zeros((7, 2), bool).at[3].set(True)
    _, ys = rs.scan(cell, params, carry, xs, reset=reset, reset_to=carry)
    parts = [
        rs.scan(cell, params, carry, jax.tree.map(lambda leaf, steps=steps: leaf[steps], xs))[1]
        for steps in (slice(0, 3), slice(3, 7))
    ]
    assert_close(ys, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts))


def test_truncation_cuts_the_gradient_and_not_the_values():
    params, carry, xs = arguments(0, 6, 2)
    whole = rs.scan(cell, params, carry, xs)
    assert_close(rs.scan(cell, params, carry, xs, truncate=2), whole, tolerance=0)

    def last_output(signal):
        return rs.scan(cell, params, carry, {**xs, "signal": signal}, truncate=2)[1]["out"][5].sum()

    reached = np.any(np.asarray(jax.jit(jax.grad(last_output))(xs["signal"])), axis=(1, 2))
    np.testing.assert_array_equal(reached, [False, False, False, False, True, True])


def test_without_inputs_the_length_says_how_often():
    final, ys = rs.scan(lambda params, carry, x: (carry * params, carry), 2.0, 1.0, None, length=4)
    assert float(final) == 16.0
    np.testing.assert_array_equal(ys, [1.0, 2.0, 4.0, 8.0])


def test_the_output_may_be_none():
    final, ys = rs.scan(lambda params, carry, x: (carry + x, None), None, jnp.zeros(2), jnp.ones((3, 2)))
    assert ys is None
    np.testing.assert_array_equal(final, [3.0, 3.0])


@pytest.mark.parametrize("choice", variants(["plain autodiff", "keep names", "segments"], ["segments"]))
def test_arrays_that_the_cell_closes_over_get_gradients(choice):
    params, carry, xs = arguments(0, 6, 2)

    def closed(params, carry, xs):
        return rs.scan(lambda _, carry, x: cell(params, carry, x), None, carry, xs, memory=MEMORIES[choice])

    opened = functools.partial(rs.scan, cell)
    assert_close(value_and_gradients(closed, params, carry, xs), value_and_gradients(opened, params, carry, xs))


@pytest.mark.parametrize("choice", variants(["plain autodiff", "keep names", "segments"], ["keep names"]))
def test_vmap_over_everything_equals_a_loop(choice):
    several = [arguments(seed, 5, 2) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)

    def gradients(params, carry, xs):
        return jax.grad(lambda params: loss(rs.scan(cell, params, carry, xs, memory=MEMORIES[choice])))(params)

    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(jax.jit(gradients)(*one) for one in several))
    assert_close(jax.jit(jax.vmap(gradients))(*stacked), expected)


def test_jit_eager_and_disabled_jit_agree():
    given = arguments(0, 4, 2)
    run = functools.partial(rs.scan, cell, memory=rs.Memory(segment=3))
    assert_close(run(*given), jax.jit(run)(*given))
    with jax.disable_jit():
        assert_close(run(*given), jax.jit(run)(*given))


def test_the_outer_checkpoint_of_a_user_works_around_it():
    params, carry, xs = arguments(0, 6, 2)
    run = functools.partial(rs.scan, cell, memory=rs.Memory(segment=4))
    assert_close(
        value_and_gradients(jax.checkpoint(run), params, carry, xs), value_and_gradients(run, params, carry, xs)
    )


def test_a_scan_within_a_cell():
    params, carry, xs = arguments(0, 5, 2)

    def outer(params, carry, xs):
        carry, ys = rs.scan(cell, params, carry, xs, memory=rs.Memory(recompute=("gate",)))
        return carry, rs.name(ys["out"].sum(0), "total")

    doubled = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), xs)
    run = functools.partial(rs.scan, outer, memory=rs.Memory(recompute=("total",)))
    expected = functools.partial(rs.scan, outer, memory=None)
    assert_close(
        value_and_gradients(run, params, carry, doubled), value_and_gradients(expected, params, carry, doubled)
    )


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
    with jax.enable_x64(False):
        _, ys = rs.scan(lambda p, c, x: (c, x), None, jnp.zeros(3), jnp.ones((5, 3)), seq_lengths=huge)
    np.testing.assert_array_equal(ys.sum(0), [5, 0, 1])


AROUND_NAMES = [rs.Memory(), rs.Memory(recompute=("outer",)), rs.Memory(segment=2)]


def nested(kind, value):
    """A name for `value` in a transformation within the cell, and once more outside of it."""
    name = lambda value: jnp.sin(rs.name(value, "inner"))  # noqa: E731
    match kind:
        case "cond":
            inner = lax.cond(value.sum() > 0, name, lambda value: rs.name(value, "inner") * 2, value)
        case "closing cond":
            inner = lax.cond(value.sum() > 0, lambda: name(value), lambda: rs.name(value, "inner"))
        case "jit":
            inner = jax.jit(lambda: name(value))()
        case "checkpoint":
            inner = jax.checkpoint(lambda: name(value))()
        case "vmap":
            inner = jax.vmap(name)(value)
        case "scan":
            inner = lax.scan(lambda carry, _: (carry + name(value), None), value, None, length=2)[0]
    return inner + rs.name(value, "outer")


@pytest.mark.parametrize("memory", variants(AROUND_NAMES, [rs.Memory(recompute=("outer",))]), ids=str)
@pytest.mark.parametrize(
    "kind", variants(["cond", "closing cond", "jit", "checkpoint", "vmap", "scan"], ["closing cond", "vmap", "scan"])
)
def test_names_within_transformations_in_the_cell(kind, memory):
    def stepped(params, carry, x):
        hidden = jnp.tanh(nested(kind, x["signal"] @ params["kernel"] + carry))
        return hidden, hidden

    params, carry, xs = arguments(0, 3, 2)
    gradient = lambda memory: jax.jit(  # noqa: E731
        jax.grad(lambda params: loss(rs.scan(stepped, params, carry["hidden"], xs, memory=memory)))
    )(params)
    assert_close(gradient(memory), gradient(None))


def test_no_trace_is_kept_alive():
    """JAX's caches hold what a name's reader is, for as long as they like."""
    traced = []

    @jax.jit  # Its cache has the reader in its key.
    def product(params, x):
        result = rs.name(x * params, "product")
        traced.append(weakref.ref(result))
        return result

    def cell(params, carry, x):
        hidden = jnp.tanh(product(params, x) + carry)
        return hidden, hidden

    jax.grad(lambda params: loss(rs.scan(cell, params, jnp.ones(2), jnp.ones((3, 2)))))(jnp.ones(2))
    gc.collect()
    assert traced
    assert [one for one in traced if one() is not None] == []


@pytest.mark.bad_input  # For the annotations, which say int.
def test_numpy_integers_are_numbers_of_steps():
    given = arguments(0, 5, 2)
    memory = rs.Memory(segment=np.int64(2))
    options = {"length": np.int32(5), "unroll": np.int64(2), "truncate": np.int64(2)}
    assert_close(rs.scan(cell, *given, memory=memory, **options), rs.scan(cell, *given, truncate=2))


def test_numpy_arrays_are_taken():
    final, _ = rs.scan(lambda params, carry, x: (carry + x, None), None, np.zeros(2), np.ones((3, 2)))
    np.testing.assert_array_equal(final, [3.0, 3.0])


def test_export_with_symbolic_time_and_batch():
    params, _, xs = arguments(0, 4, 2)

    def run(xs):
        rows = xs["signal"].shape[1]
        initial = {"hidden": jnp.ones((rows, 4)), "count": jnp.zeros(rows, xs["token"].dtype)}
        return rs.scan(cell, params, initial, xs)

    shapes = {"signal": "t, b, 3", "scale": "t", "token": "t, b"}
    scope = jax.export.SymbolicScope()
    symbolic = {
        name: jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), xs[name].dtype)
        for name, shape in shapes.items()
    }
    assert_close(jax.export.export(jax.jit(run))(symbolic).call(xs), run(xs))


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("padding", variants(["zero", "hold"], ["hold"]))
def test_shard_map_over_the_batch(padding):
    params, carry, xs = arguments(0, 5, 2)
    lengths = jnp.array([2, 5])
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    rows, steps = PartitionSpec("batch"), PartitionSpec(None, "batch")

    def run(params, carry, xs, lengths):
        memory = rs.Memory(segment=3, recompute=("gate",))
        return rs.scan(cell, params, carry, xs, seq_lengths=lengths, padding=padding, truncate=2, memory=memory)

    sharded = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(PartitionSpec(), rows, {"signal": steps, "scale": PartitionSpec(), "token": steps}, rows),
        out_specs=(rows, steps),
    )

    def results_and_gradient(run):
        def loss_and_results(params):
            results = run(params, carry, xs, lengths)
            return loss(results), results

        return jax.jit(jax.value_and_grad(loss_and_results, has_aux=True))(params)

    assert_close(results_and_gradient(sharded), results_and_gradient(run))


@pytest.mark.parametrize("wanted", [0, 1], ids=["carry", "outputs"])
def test_shard_map_where_the_loss_reads_the_carry_or_the_outputs_alone(wanted):
    """In several chunks, with what the cell closes over sharded too."""
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    rows, steps = PartitionSpec("batch"), PartitionSpec(None, "batch")
    params, carry, xs = jnp.full((3, 3), 0.3), jnp.full((4, 3), 0.1), jnp.linspace(0.0, 1.0, 6 * 4 * 3).reshape(6, 4, 3)

    def run(params, scale, carry, xs):
        def cell(params, carry, x):
            hidden = jnp.tanh((carry * scale) @ params + x)
            return hidden, hidden * scale

        return rs.scan(cell, params, carry, xs, memory=rs.Memory(recompute="all", segment=4))[wanted]

    out = (rows, steps)[wanted]
    sharded = jax.shard_map(run, mesh=mesh, in_specs=(PartitionSpec(), rows, rows, steps), out_specs=out)
    gradient = lambda run: jax.jit(jax.grad(lambda *given: (run(*given) ** 2).sum(), argnums=(0, 1, 2, 3)))  # noqa: E731
    given = (params, jnp.full((4, 1), 0.7), carry, xs)
    assert_close(gradient(sharded)(*given), gradient(run)(*given))


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


def test_a_buffer_that_is_donated_gives_the_same():
    params, carry, xs = arguments(0, 5, 2)
    run = lambda params, carry: rs.scan(cell, params, carry, xs)[0]  # noqa: E731
    expected = run(params, carry)
    donated = jax.jit(run, donate_argnums=1)(params, jax.tree.map(jnp.copy, carry))
    assert_close(donated, expected)


def test_tracing_does_not_depend_on_what_was_traced_before():
    """An inner jit is traced anew for each memory choice: its names may not come from another choice's cache."""
    inner = jax.jit(cell)
    given = arguments(0, 6, 2)

    def bytes_kept(cell, memory):
        params, carry, xs = given
        run = lambda params: rs.scan(cell, params, carry, xs, memory=memory)[1]["out"]  # noqa: E731
        return kept_bytes(run, params)

    for memory in (None, rs.Memory(), rs.Memory(recompute=("gate",)), rs.Memory(recompute="all"), None):
        assert bytes_kept(lambda *args: inner(*args), memory) == bytes_kept(cell, memory)


def test_nothing_is_traced_again_on_a_second_call():
    traces = []

    def counted(params, carry, x):
        traces.append(None)
        return cell(params, carry, x)

    run = jax.jit(functools.partial(rs.scan, counted))
    given = arguments(0, 4, 2)
    run(*given)
    before = len(traces)
    run(*given)
    assert len(traces) == before


def test_plain_autodiff_is_lax_scan():
    params, carry, xs = arguments(0, 5, 2)
    expected = lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)
    assert_close(rs.scan(cell, params, carry, xs, memory=None), expected, tolerance=0)
