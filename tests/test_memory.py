"""The rule of memory, counted: bytes of the residuals of jax.vjp, and XLA's memory analysis."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan import _checks as checks
from rnnscan import cells
from rnnscan.checkpointing import SubScan
from rnnscan.insight import kept_bytes, temporary_bytes


# `make test` runs these with the run-time type checks. The rule of memory is for loops of any size, small ones aside.
pytestmark = [pytest.mark.typed, pytest.mark.large_loops]


FLOAT = 4
LENGTH, BATCH, FEATURES, HIDDEN = 128, 32, 128, 256
WEIGHTS, BIASES = (FEATURES + HIDDEN) * 4 * HIDDEN, 4 * HIDDEN
OFFLOAD = rs.Memory(offload=("product",))


def lstm(length=LENGTH, batch=BATCH, features=FEATURES, hidden=HIDDEN):
    cell = cells.LSTM(hidden)
    xs = jax.ShapeDtypeStruct((length, batch, features), jnp.float32)
    x = jax.ShapeDtypeStruct((batch, features), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), features))
    return cell, params, jax.eval_shape(cell.initial_carry, x), xs


def bytes_kept(memory, cell, params, carry, xs, **options):
    return kept_bytes(lambda *arguments: rs.scan(cell, *arguments, memory=memory, **options), params, carry, xs)


def plain_bytes(cell, params, carry, xs):
    """What autodiff of lax.scan keeps; outside rnnscan names are JAX's own and would be kept beside their producers."""
    unnamed = lambda params, carry, xs: rs.scan(cell, params, carry, xs, memory=None)  # noqa: E731
    return kept_bytes(unnamed, params, carry, xs)


def lstm_step_without_names(params, carry, x):
    hidden, state = carry
    gates = x @ params["kernel"] + hidden @ params["recurrent_kernel"] + params["bias"]
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    state = jax.nn.sigmoid(f) * state + jax.nn.sigmoid(i) * jnp.tanh(g)
    hidden = jax.nn.sigmoid(o) * jnp.tanh(state)
    return (hidden, state), hidden


@pytest.mark.core("memory choices")
def test_names_cost_nothing_under_plain_autodiff():
    cell, params, carry, xs = lstm()
    bare = kept_bytes(
        lambda params, carry, xs: lax.scan(lambda c, x: lstm_step_without_names(params, c, x), carry, xs),
        params,
        carry,
        xs,
    )
    assert plain_bytes(cell, params, carry, xs) == bare


@pytest.mark.core("memory choices")
def test_recomputing_the_gates_keeps_at_most_a_quarter_of_plain_autodiff():
    arguments = lstm()
    plain = plain_bytes(*arguments)
    assert bytes_kept(rs.Memory(recompute=("gates",)), *arguments) <= 0.25 * plain
    assert bytes_kept(rs.Memory(), *arguments) <= 0.55 * plain


@pytest.mark.core("memory choices")
@pytest.mark.parametrize(
    ("memory", "floats"),
    [
        (rs.Memory(), LENGTH * BATCH * (FEATURES + 2 * HIDDEN + 4 * HIDDEN) + WEIGHTS),
        (rs.Memory(recompute=("gates",)), LENGTH * BATCH * (FEATURES + 2 * HIDDEN) + WEIGHTS + BIASES),
        (rs.Memory(recompute="all"), LENGTH * BATCH * (FEATURES + 2 * HIDDEN) + WEIGHTS + BIASES),
    ],
    ids=str,
)
def test_with_the_lax_engine_an_lstm_keeps_its_carries_too(memory, floats):
    assert bytes_kept(memory, *lstm(), engine="lax") == FLOAT * floats


@pytest.mark.core("memory choices")
@pytest.mark.parametrize("chunk", [8, 16, 128])
@pytest.mark.parametrize(("memory", "named"), [({}, 4 * HIDDEN), ({"recompute": "all"}, 0)], ids=str)
def test_an_lstm_keeps_its_input_and_its_output_and_its_gates_if_they_are_not_recomputed(memory, named, chunk):
    """And c before each chunk, from which it follows."""
    floats = LENGTH * BATCH * (FEATURES + HIDDEN + named)
    floats += WEIGHTS + BIASES + BATCH * 2 * HIDDEN + LENGTH // chunk * BATCH * HIDDEN
    assert bytes_kept(rs.Memory(chunk=chunk, **memory), *lstm()) == FLOAT * floats


@pytest.mark.core("memory choices")
def test_recomputing_all_of_an_lstm_keeps_an_eighth_of_what_plain_autodiff_keeps():
    """The parameters, which the caller holds anyway, are counted on neither side."""
    arguments = lstm()
    kept, plain = bytes_kept(rs.Memory(recompute="all"), *arguments), plain_bytes(*arguments)
    parameters = FLOAT * (WEIGHTS + BIASES)
    assert kept - parameters <= 0.13 * (plain - parameters)


@pytest.mark.core("memory choices")
@pytest.mark.parametrize(("segment", "carries"), [(32, 4), (128, 1), (1000, 1), ("sqrt", 11), ((64, 8), 2), (100, 2)])
def test_segments_keep_the_carry_before_each_of_them_and_nothing_else(segment, carries):
    floats = LENGTH * BATCH * FEATURES + carries * BATCH * 2 * HIDDEN + WEIGHTS + BIASES
    for engine in ("lax", "fission"):
        assert bytes_kept(rs.Memory(segment=segment), *lstm(), engine=engine) == FLOAT * floats


@pytest.mark.core("memory choices")
def test_lengths_resets_and_truncation_keep_only_what_says_where_they_are():
    arguments = lstm()
    bare = bytes_kept(rs.Memory(), *arguments)
    lengths = jnp.full(BATCH, 7)
    steps = LENGTH * BATCH  # one bool a step and row
    assert bytes_kept(rs.Memory(), *arguments, seq_lengths=lengths) <= bare + 2 * steps
    assert bytes_kept(rs.Memory(), *arguments, seq_lengths=lengths, padding="hold") <= bare + 3 * steps
    initial = BATCH * 2 * HIDDEN * FLOAT
    reset = jnp.ones((LENGTH, BATCH), bool)
    assert bytes_kept(rs.Memory(), *arguments, reset=reset) <= bare + steps + initial
    assert bytes_kept(rs.Memory(), *arguments, truncate=16) <= bare + LENGTH * FLOAT


def compiled_bytes(memory, engine="auto"):
    cell, params, _, xs = lstm()

    def loss(params, xs):
        carry = cell.initial_carry(xs[0])
        return jnp.sum(jnp.sin(rs.scan(cell, params, carry, xs, memory=memory, engine=engine)[0][0]))

    return temporary_bytes(jax.jit(jax.grad(loss)).lower(params, xs).compile())


def test_the_compiled_program_needs_less_memory_too():
    """What XLA allocates, and not only what JAX asks for."""
    plain = compiled_bytes(None)
    keep, gates, segments = map(
        compiled_bytes, (rs.Memory(), rs.Memory(recompute=("gates",)), rs.Memory(segment="sqrt"))
    )
    assert keep < 0.75 * plain
    assert gates < 0.40 * plain
    assert segments < 0.22 * plain
    assert compiled_bytes(rs.Memory(segment="sqrt"), engine="lax") < 0.20 * plain


def sum_of_two(params, carry, x):
    product = x @ params["kernel"] + carry @ params["recurrent_kernel"]
    hidden = jnp.tanh(rs.name(product, "one")) + jnp.sin(rs.name(product, "other"))
    return hidden, hidden


def carried(params, carry, x):
    hidden = rs.name(jnp.tanh(rs.name(x @ params["kernel"] + carry @ params["recurrent_kernel"], "product")), "hidden")
    return hidden, hidden


def simple():
    params = {"kernel": jnp.ones((3, 4)), "recurrent_kernel": jnp.eye(4)}
    return params, jnp.zeros((2, 4)), jnp.ones((6, 2, 3))


@pytest.mark.core("memory choices")
def test_one_value_with_two_names_is_kept_once_and_if_either_name_is_kept():
    params, carry, xs = simple()
    nothing = bytes_kept(rs.Memory(recompute="all"), sum_of_two, params, carry, xs)
    product = 6 * 2 * 4 * FLOAT
    for recompute in ((), ("one",), ("other",)):
        assert bytes_kept(rs.Memory(recompute=recompute), sum_of_two, params, carry, xs) == nothing + product
    assert bytes_kept(rs.Memory(recompute=("one", "other")), sum_of_two, params, carry, xs) == nothing


@pytest.mark.core("memory choices")
def test_a_name_within_a_gradient_of_the_step_keeps_the_value_and_not_its_cotangent():
    draw = np.random.default_rng(0).normal
    params, carry, xs = (jnp.asarray(draw(size=shape), jnp.float32) for shape in ((4, 16), (3, 4), (5, 3, 4)))

    def cell(params, position, x):
        energy = lambda position: jnp.sum(jnp.tanh(rs.name(position @ params, "margins")) ** 2)  # noqa: E731
        position = jnp.sin(position - 0.1 * jax.grad(energy)(position) * x)
        return position, position[:, :2]

    def gradients(memory):
        return jax.grad(lambda *arguments: jnp.sum(rs.scan(cell, *arguments, memory=memory)[1] ** 2), (0, 1, 2))(
            params, carry, xs
        )

    margins = 5 * 3 * 16 * FLOAT
    kept, recomputed = (bytes_kept(memory, cell, params, carry, xs) for memory in (rs.Memory(), rs.Memory("all")))
    assert kept - recomputed == margins
    for memory in (rs.Memory(), rs.Memory("all")):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), gradients(memory), gradients(None))
    equations = rs.explain(cell, params, carry, xs).equations
    (named,) = [number for number, equation in enumerate(equations) if equation.name == "margins"]
    assert named in next(equation.reads for equation in equations if equation.operation == "tanh")


@pytest.mark.core("memory choices")
def test_a_carry_that_has_a_name_is_not_kept_twice():
    params, carry, xs = simple()
    with_product = bytes_kept(rs.Memory(recompute=("hidden",)), carried, params, carry, xs)
    assert bytes_kept(rs.Memory(), carried, params, carry, xs) == with_product
    nothing = bytes_kept(rs.Memory(recompute="all"), carried, params, carry, xs)
    assert with_product == nothing + 6 * 2 * 4 * FLOAT


@pytest.mark.core("memory choices")
def test_an_input_or_a_carry_that_has_a_name_is_not_kept_twice():
    def named(params, carry, x):
        product = x @ params["kernel"] + carry @ params["recurrent_kernel"]
        hidden = jnp.tanh(product) * jnp.sin(rs.name(carry, "incoming")) * jnp.sin(rs.name(x, "input").sum())
        return hidden, hidden

    params, carry, xs = simple()
    nothing = bytes_kept(rs.Memory(recompute="all"), named, params, carry, xs)
    assert bytes_kept(rs.Memory(), named, params, carry, xs) == nothing


@pytest.mark.core("memory choices")
@pytest.mark.parametrize("name", ["product", "other"])
def test_the_names_of_a_scan_within_a_cell_are_not_the_outer_ones(name):
    """Whether inner names are kept by the outer choice may not depend on how they are spelt."""

    def outer(params, carry, xs):
        carry, ys = rs.scan(carried, params, carry, xs)
        return carry, rs.name(jnp.sin(ys.sum(0)), name)

    params, carry, xs = simple()
    inputs = jnp.stack([xs, xs, xs])
    labeled = 3 * 2 * 4 * FLOAT
    nothing = bytes_kept(rs.Memory(recompute="all"), outer, params, carry, inputs)
    assert bytes_kept(rs.Memory(), outer, params, carry, inputs) <= nothing + labeled


def test_unrolling_some_steps_keeps_the_memory_choice_of_the_compiled_program():
    cell, params, _, xs = lstm(length=128, hidden=64)

    def compiled(memory):
        loss = lambda params, xs: rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory, unroll=4)[1].sum()  # noqa: E731
        return temporary_bytes(jax.jit(jax.grad(loss)).lower(params, xs).compile())

    assert compiled(rs.Memory(recompute="all")) < 0.5 * compiled(None)


@pytest.mark.core("memory choices")
def test_outside_rnnscan_a_name_is_seen_by_the_policies_of_jax():
    params, carry, xs = simple()

    def with_policy(policy):
        step = jax.checkpoint(carried, policy=policy)
        return kept_bytes(lambda params: lax.scan(lambda c, x: step(params, c, x), carry, xs)[1], params)

    policies = jax.checkpoint_policies
    keeps = with_policy(policies.save_only_these_names("product"))
    # Where the product is kept, the input's kernel need not be read again; not every version of JAX notices.
    product = 6 * 2 * 4 * FLOAT
    assert keeps - with_policy(policies.nothing_saveable) in (product, product - params["kernel"].nbytes)


def test_a_name_labels_every_leaf_of_a_pytree():
    def pair(params, carry, x):
        products = {"x": x @ params["kernel"], "h": carry @ params["recurrent_kernel"]}
        products = rs.name(products, "products")
        hidden = jnp.tanh(products["x"] * products["h"])
        return hidden, hidden

    params, carry, xs = simple()
    nothing = bytes_kept(rs.Memory(recompute="all"), pair, params, carry, xs)
    assert bytes_kept(rs.Memory(), pair, params, carry, xs) == nothing + 2 * 6 * 2 * 4 * FLOAT


@pytest.mark.core("memory choices")
@pytest.mark.skipif(checks.has_early_remat3(), reason="refused there, which test_bad_input.py tests")
def test_offloaded_values_give_the_same_gradients_and_are_not_kept_on_the_device():
    params, carry, xs = simple()

    def gradients(memory):
        run = lambda params: rs.scan(carried, params, carry, xs, memory=memory, engine="lax")[1].sum()  # noqa: E731
        return jax.jit(jax.grad(run))(params)

    with pytest.warns(UserWarning, match="saves nothing on a CPU"):
        offloaded = gradients(OFFLOAD)
    expected = gradients(rs.Memory())
    assert all(bool(jnp.all(offloaded[name] == expected[name])) for name in params)
    with pytest.warns(UserWarning, match="saves nothing on a CPU"):
        program = str(
            jax.make_jaxpr(jax.grad(lambda p: rs.scan(carried, p, carry, xs, memory=OFFLOAD)[1].sum()))(params)
        )
    assert "host" in program


@pytest.mark.parametrize(
    ("length", "segments"), [(0, None), (1, (1,)), (2, (2,)), (16, (4,)), (17, (5,)), (1000, (32,))]
)
def test_the_square_root_is_rounded_up(length, segments):
    assert rs.Memory(segment="sqrt").sub_scans(length) == (SubScan(length, segments),)


def test_the_parts_of_a_schedule():
    schedule = rs.checkpointing.nested(100, slots=30)
    assert rs.Memory(segment=schedule).sub_scans(100) == schedule.sub_scans
    assert len(schedule.sub_scans) > 1
    assert rs.Memory(segment=rs.checkpointing.nested(0, slots=30)).sub_scans(0) == (SubScan(0, None),)
    assert rs.Memory(segment=(30, 5)).sub_scans(100) == (SubScan(100, (30, 5)),)
    assert rs.Memory().sub_scans(100) == (SubScan(100, None),)


def test_a_memory_choice_shows_what_is_not_the_default():
    assert repr(rs.Memory()) == "Memory()"
    assert repr(rs.Memory(recompute=("gates",), chunk=4)) == "Memory(recompute=('gates',), chunk=4)"
    assert rs.Memory.fit("1KiB").bytes == 1024
    assert not isinstance(rs.Memory.fit("1KiB"), rs.Memory)
    assert eval(repr(rs.Memory(segment=(8, 2))), {"Memory": rs.Memory}) == rs.Memory(segment=(8, 2))


def test_a_memory_choice_is_a_value():
    assert rs.Memory(recompute=("gates",), segment=(8, 2)) == rs.Memory(recompute=("gates",), segment=(8, 2))
    assert len({rs.Memory(), rs.Memory(recompute=()), rs.Memory(segment=8)}) == 2


@pytest.mark.bad_input
def test_lists_are_taken_for_tuples():
    """JSON and command lines have no tuples."""
    assert rs.Memory(recompute=["gates"], segment=[8, 2]) == rs.Memory(recompute=("gates",), segment=(8, 2))
