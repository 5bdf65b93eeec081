"""Matrix states in chunkwise form equal the loop, and keep the state before windows only."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat3
import rnnscan as rs
from matrix_states import BATCH, LENGTH, LOOPED, SMALL, assert_equal, compiled, decayed, linear_attention
from rnnscan import cells
from rnnscan.engine.costs.heuristics import BACKENDS, using
from rnnscan.insight.memory_report import memory_report
from rnnscan.planning.bytes import temporary_bytes
from tiers import variants
from zoo.case import Case


CELLS = {
    "GLA": cells.GLA(8, heads=2),
    "RetNet": cells.RetNet(8, heads=2),
    "MLSTM": cells.MLSTM(8, heads=2),
    "LinearAttention": cells.LinearAttention(8, heads=2),
    "Mamba2": cells.Mamba2(8, heads=2, key_size=4),
    "two layers": rs.stack(cells.GLA(8, heads=2), cells.RetNet(8, heads=2)),
}


@pytest.fixture(autouse=True)
def small():
    with using(SMALL):
        yield


def arguments_of(name, **options):
    case = Case(CELLS[name])
    return case, case.arguments(length=LENGTH, batch=BATCH, **options)


def explained(cell, arguments, **options):
    return rs.explain(cell, *arguments, **options).states


def assert_chunkwise(cell, arguments, count=1, **options):
    texts = explained(cell, arguments, **options).values()
    assert sum(text.startswith("in chunks of 4 steps") for text in texts) == count, texts


def both(cell, arguments, **options):
    """Results and gradients, chunkwise and by the loop with plain autodiff."""

    def run(**options):
        def loss(*arguments):
            results = rs.scan(cell, *arguments, **options)
            return Case.loss(results), results

        return compiled(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True, allow_int=True))(*arguments)

    return run(**options), run(**options | {"engine": "lax", "memory": None})


LENGTHS = jnp.array([13, LENGTH, 0])
RESET = jnp.asarray(np.random.default_rng(0).random((LENGTH, BATCH)) < 0.2)
OPTIONS = {
    "plain": {},
    "lengths": {"seq_lengths": LENGTHS},
    "resets, reversed": {"seq_lengths": LENGTHS, "reset": RESET, "reverse": True},
    "dropped": {"seq_lengths": LENGTHS, "padding": "drop"},
    "segments": {"memory": rs.Memory(segment=9)},
    "chunks": {"memory": rs.Memory(recompute="all", chunk=5), "reset": RESET},
}
TELLING = ["MLSTM, resets, reversed"]


@pytest.mark.large_loops
@pytest.mark.core("recurrences in parallel")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "options"),
    variants({f"{name}, {one}": (name, OPTIONS[one]) for name in CELLS for one in OPTIONS}, TELLING),
)
def test_the_loop_and_the_chunks_give_the_same_values_and_gradients(name, options):
    case, arguments = arguments_of(name)
    assert_chunkwise(case.cell, arguments, count=2 if name == "two layers" else 1, **options)
    assert_equal(*both(case.cell, arguments, **options))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", variants(["RetNet", "MLSTM", "GLA"], ["MLSTM"]))
def test_rounds_give_the_values_and_gradients_of_loops(name):
    with using(replace(SMALL, linear="associative")):
        case, arguments = arguments_of(name)
        assert_equal(*both(case.cell, arguments, seq_lengths=LENGTHS, reset=RESET, reverse=True))


DECAYS = {
    "a key, 0.5 to 0.9999": (True, (0.5, 0.9999)),
    "a key, 0.99 to 0.9999": (True, (0.99, 0.9999)),
    "a head, 0.5 to 0.6": (False, (0.5, 0.6)),
    "a head, 0.5 to 0.9999": (False, (0.5, 0.9999)),
}


@pytest.mark.parametrize(("per_key", "decays"), variants(DECAYS, ["a key, 0.5 to 0.9999"]))
def test_rounding_is_that_of_the_loop(per_key, decays):
    arguments = decayed(300, per_key, decays)

    def run(dtype, engine):
        with jax.enable_x64(dtype is np.float64), using(replace(SMALL, state_chunk=64, longest_window=128)):
            state, xs = jax.tree.map(lambda leaf: jnp.asarray(leaf.astype(np.float32), dtype), arguments)

            def loss(state, xs):
                results = rs.scan(linear_attention, None, state, xs, engine=engine)
                return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results)), results

            results = compiled(jax.grad(loss, argnums=(0, 1), has_aux=True))(state, xs)
            return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(results)]

    exact = run(np.float64, "lax")
    assert_equal(run(np.float64, "auto"), exact)
    own, loop = (
        max(np.linalg.norm(leaf - wanted) / np.linalg.norm(wanted) for leaf, wanted in zip(found, exact, strict=True))
        for found in (run(np.float32, "auto"), run(np.float32, "lax"))
    )
    # Both are 1 to 3 units in the last place. The loop has fewer roundings where all but a few steps are forgotten.
    assert own <= 1.25 * loop


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_windows_rows_and_mapped_sequences():
    case, (params, carry, xs) = arguments_of("MLSTM")
    run = compiled(partial(rs.scan, case.cell))
    whole = run(params, carry, xs)
    middle, first = run(params, carry, xs[:9])
    last, second = run(params, middle, xs[9:])
    assert_equal((last, jnp.concatenate([first, second])), whole, 1e-12)
    one = jax.tree.map(lambda leaf: leaf[1:2], carry)
    assert_equal(run(params, one, xs[:, 1:2])[1], whole[1][:, 1:2], 1e-12)
    mapped = jax.vmap(lambda x: rs.scan(case.cell, params, carry, x)[1])(jnp.stack([xs, xs[::-1]]))
    assert_equal(mapped[0], whole[1], 1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", variants(list(CELLS), ["RetNet"]))
def test_the_gradient_of_mapped_sequences_is_in_windows_too(name):
    case, (params, carry, xs) = arguments_of(name)
    both = jnp.stack([xs, 0.7 * xs[::-1]])

    def loss(params, xs):
        return Case.loss(rs.scan(case.cell, params, carry, xs))

    def mapped(params):
        return jax.vmap(loss, (None, 0))(params, both).sum()

    jaxpr = str(jax.make_jaxpr(jax.grad(mapped))(params))
    assert f"length={LENGTH}" not in jaxpr
    assert "rnnscan_call" in jaxpr
    one_by_one = jax.tree.map(jnp.add, *(compiled(jax.grad(loss))(params, one) for one in both))
    assert_equal(compiled(jax.grad(mapped))(params), one_by_one)


@pytest.mark.parametrize(
    ("name", "platform", "loops"), [("GLA", "cpu", True), ("RetNet", "cpu", True), ("RetNet", "gpu", False)]
)
def test_on_a_cpu_a_loop_runs_what_is_not_differentiated(name, platform, loops):
    case, arguments = arguments_of(name)
    with using(replace(SMALL, loops_states_forward=BACKENDS[platform].loops_states_forward)):
        run = lambda *arguments: rs.scan(case.cell, *arguments)  # noqa: E731
        traced = jax.make_jaxpr(run)(*arguments).jaxpr
        (scan,) = [one for one in traced.eqns if one.primitive.name == "rnnscan_scan"]
        program = scan.primitive.program([var.aval for var in scan.invars], scan.params)
        assert ("rnnscan_call" not in str(program)) == loops  # The chunkwise form has the loop in reserve.
        whole = f"length={LENGTH}"
        assert whole not in str(jax.make_jaxpr(jax.grad(lambda *arguments: Case.loss(run(*arguments))))(*arguments))
        (text,) = explained(case.cell, arguments).values()
        assert text.endswith("; step by step where nothing is differentiated") == loops


@pytest.mark.core("recurrences in parallel")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("order", variants([1, 2], [1]))
def test_forward_mode_is_reverse_mode(order):
    state, xs = jax.tree.map(jnp.asarray, decayed(9, True, (0.5, 0.9)))

    def loss(scale):
        return Case.loss(rs.scan(linear_attention, None, state, jax.tree.map(lambda leaf: scale * leaf, xs)))

    scale = jnp.asarray(0.9)
    value, forward = compiled(lambda scale: jax.jvp(loss, (scale,), (jnp.ones(()),)))(scale)
    assert_equal(forward, compiled(jax.grad(loss))(scale))
    if order == 2:
        step = 1e-4
        below, above = (compiled(loss)(scale + side * step) for side in (-1, 1))
        second = compiled(jax.jacfwd(jax.grad(loss)))(scale)
        assert_equal(second, (below + above - 2 * value) / step**2, 1e-4)


@pytest.mark.slow
def test_an_export_with_a_symbolic_batch():
    case, (params, carry, xs) = arguments_of("GLA")
    (batch,) = jax.export.symbolic_shape("n")
    types = [
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params),
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype), carry),
        jax.ShapeDtypeStruct((LENGTH, batch, xs.shape[-1]), xs.dtype),
    ]
    run = jax.jit(partial(rs.scan, case.cell))
    exported = jax.export.export(run)(*types)
    assert_equal(exported.call(params, carry, xs), run(params, carry, xs), 1e-6)


@pytest.mark.parametrize("name", variants([*CELLS], ["MLSTM"]))
@pytest.mark.parametrize(
    "memory", variants([rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=9)], [rs.Memory()]), ids=str
)
def test_only_inputs_names_and_the_carry_before_windows_are_kept(name, memory):
    case, arguments = arguments_of(name)
    report = memory_report(case.cell, *arguments, memory=memory, compile=False)
    assert report.predicted
    assert report.training.kept_bytes == report.training.counted_bytes


def test_temporary_bytes_are_a_fraction_of_those_of_plain_autodiff():
    # T = 256 instead of 2,048, which compiles and measures alike.
    arguments = jax.eval_shape(lambda: (jnp.zeros((2, 64, 64)), *[(jnp.zeros((256, 2, 64)),) * 4]))

    def needed(memory):
        def loss(state, xs):
            return Case.loss(rs.scan(linear_attention, None, state, xs, memory=memory))

        with using(heuristics_of_users()):
            return temporary_bytes(jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments).compile())

    # With JAX_REMAT3 nothing runs again within a window (loops/calls.py).
    assert needed(rs.Memory()) < (0.6 if remat3.IS_ON else 0.5) * needed(None)


def heuristics_of_users():
    return replace(SMALL, least_state=16, state_chunk=64, longest_window=128)


def reads_itself(params, state, x):
    query, key, value, _ = x
    found = jnp.einsum("nk,nkv->nv", key, state)
    state = state + key[..., :, None] * (value - found)[..., None, :]
    return state, jnp.einsum("nk,nkv->nv", query, state)


def returns_it(params, state, x):
    state, y = linear_attention(params, state, x)
    return state, (y, state)


def bounded(params, state, x):
    state, y = linear_attention(params, state, x)
    return state, jnp.tanh(state).sum((1, 2)) + y.sum(1)


def asks_by_answers(params, carry, x):
    state, last = carry
    query, key, value, decay = x
    state = decay[..., None] * state + key[..., :, None] * value[..., None, :]
    last = jnp.einsum("nk,nkv->nv", query + last, state)
    return (state, last), last


def full_update(params, state, x):
    query, key, value, decay = x
    state = decay[..., None] * state + jnp.tanh(key[..., :, None] + value[..., None, :])
    return state, jnp.einsum("nk,nkv->nv", query, state)


OTHERWISE = {
    reads_itself: None,
    returns_it: "it is an output",
    bounded: "tanh is not followed",
    asks_by_answers: "a query, depends on a read of it",
    full_update: "tanh is not followed",
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cell", variants([*OTHERWISE], [asks_by_answers]), ids=lambda cell: cell.__name__)
def test_other_cells_run_step_by_step_and_say_why(cell):
    state, xs = jax.tree.map(jnp.asarray, decayed(LENGTH, True, (0.5, 0.9)))
    carry = (state, jnp.zeros((2, 16))) if cell is asks_by_answers else state
    texts = explained(cell, (None, carry, xs))
    reason = OTHERWISE[cell]
    assert not texts if reason is None else [reason in text for text in texts.values()] == [True], texts
    assert_equal(*both(cell, (None, carry, xs)))


def random_cell(seed):
    """A cell of the form, with random surroundings."""
    random = np.random.default_rng(seed)
    rows, keys, values = 2, int(random.integers(2, 6)), int(random.integers(2, 6))
    transposed, old, outer, reading = (bool(random.integers(2)) for _ in range(4))
    decay = str(random.choice(["none", "head", "key", "constant"]))
    before = str(random.choice(["none", "recurrent", "linear"]))
    after = str(random.choice(["none", "recurrent"]))
    shape = (rows, values, keys) if transposed else (rows, keys, values)
    kernels = [jnp.asarray(random.normal(size=(3 + values, size)) / 2) for size in (keys, keys, values, keys)]

    def cell(params, carry, x):
        state, first, last = carry
        if before == "recurrent":
            first = jnp.tanh(first @ params[0][:values, :1] + first + x[..., :1])
        elif before == "linear":
            first = 0.9 * first + x[..., :1]
        given = jnp.concatenate([x, first], -1)
        query, key, value, gate = (given @ kernel for kernel in params)
        factor = {"none": 1.0, "head": jax.nn.sigmoid(gate[:, :1]), "key": jax.nn.sigmoid(gate), "constant": 0.7}[decay]
        factor = factor if isinstance(factor, float) else factor[:, None, :] if transposed else factor[:, :, None]
        names = "nvk" if transposed else "nkv"
        if outer:
            written = jnp.einsum(f"nk,nv->{names}", key, value)
        elif transposed:
            written = value[:, :, None] * key[:, None, :]
        else:
            written = key[:, :, None] * value[:, None, :]
        new = factor * state - written * (0.5 + 0.0 * x[:, :1, None])
        seen = state if old else new
        if reading:
            spread = query[:, None, :] if transposed else query[:, :, None]
            found = (seen * spread).sum(2 if transposed else 1)
        else:
            found = jnp.einsum(f"nk,{names}->nv", query, seen)
        found = rs.name(found, "found") if random_name else found
        last = jnp.tanh(found + last @ jnp.ones((values, values)) / 4) if after == "recurrent" else last
        return (new, first, last), jnp.sin(found) * last + value

    random_name = bool(random.integers(2))
    carry = tuple(jnp.asarray(random.normal(size=size)) for size in (shape, (rows, values), (rows, values)))
    xs = jnp.asarray(random.normal(size=(int(random.integers(8, 30)), rows, 3)))
    options = {"reverse": bool(random.integers(2))}
    if random.integers(2):
        options["seq_lengths"] = jnp.asarray(random.integers(0, len(xs) + 1, size=rows))
    if random.integers(2):
        options |= {
            "reset": jnp.asarray(random.random((len(xs), rows)) < 0.2),
            "reset_to": jax.tree.map(lambda leaf: leaf / 2, carry),
        }
    return cell, (kernels, carry, xs), options, LOOPED if random.integers(2) else SMALL


def check(seed):
    cell, arguments, options, choices = random_cell(seed)
    with using(choices):
        assert_chunkwise(cell, arguments, **options)
        assert_equal(*both(cell, arguments, **options))
        return [text.endswith("; step by step forward") for text in explained(cell, arguments, **options).values()]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("seed", "loops"), [(1, False), (25, True)])
def test_random_cells_of_the_form(seed, loops):
    assert check(seed) == [loops]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("first", range(0, 300, 10))
def test_more_random_cells_of_the_form(first):
    for seed in range(first, first + 10):
        check(seed)
    jax.clear_caches()
