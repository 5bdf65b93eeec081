"""Scans within scans keep between the passes what they would keep alone, and run again once at most."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from drawn import normal
from rnnscan import cells
from rnnscan.insight.memory_report import memory_report
from tiers import variants


ROWS, WIDTH, STEPS = 2, 5, 4
CELL = cells.GRU(WIDTH)


def rows_counted(counter):
    """A tanh that counts its rows, also where it runs for many steps at once."""

    def compute(x):
        counter.append(x.size // (ROWS * WIDTH))
        return np.tanh(x)

    @jax.custom_jvp
    def tanh(x):
        return jax.pure_callback(compute, jax.typeof(x), x, vmap_method="expand_dims")

    tanh.defjvps(lambda dot, y, x: dot * (1 - y**2))
    return tanh


def levels(count, tanh=jnp.tanh, scan=rs.scan):
    """A step of so many scans within each other."""

    def step(params, carry, x):
        return carry + tanh(carry @ params), None

    for _ in range(count):
        step = partial(lambda inner, params, carry, x: (scan(inner, params, carry, None, length=3)[0], None), step)
    return step


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_innermost_step_runs_twice_however_deep_it_lies(count):
    random, counter = np.random.default_rng(0), []
    params, carry = normal(random, (WIDTH, WIDTH), jnp.float32), normal(random, (ROWS, WIDTH), jnp.float32)
    step = levels(count, rows_counted(counter))
    jax.block_until_ready(jax.jit(jax.grad(lambda params: step(params, carry, None)[0].sum()))(params))
    assert sum(counter) == 2 * 3**count


def test_results_that_other_work_reads_do_not_run_a_level_again():
    random, counter = np.random.default_rng(0), []
    params, carry = normal(random, (WIDTH, WIDTH), jnp.float32), normal(random, (ROWS, WIDTH), jnp.float32)
    tanh = rows_counted(counter)

    def inner(params, carry, x):
        carry = tanh(carry @ params)
        return carry, carry

    def outer(params, carry, x):
        last, ys = rs.scan(inner, params, carry, None, length=3)
        return jnp.sin(last) * ys[0], (ys, jnp.cos(ys))

    def loss(params):
        carry_and_ys = rs.scan(outer, params, carry, None, length=5)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(carry_and_ys))

    jax.block_until_ready(jax.jit(jax.grad(loss))(params))
    assert sum(counter) == 3 * 5  # The derivative of tanh reads its result, which is the carry.


def test_recompute_all_runs_a_level_again():
    random, counter = np.random.default_rng(0), []
    params, carry = normal(random, (WIDTH, WIDTH), jnp.float32), normal(random, (ROWS, WIDTH), jnp.float32)
    scan = partial(rs.scan, memory=rs.Memory(recompute="all"))
    step = levels(2, rows_counted(counter), scan)
    jax.block_until_ready(jax.jit(jax.grad(lambda params: step(params, carry, None)[0].sum()))(params))
    assert sum(counter) == 3 * 3**2


# Each takes the scan that it uses: `rs.scan`, or one by `lax.scan`.


def carries(scan, params, carry, x):
    return levels(1, scan=scan)(params["kernel"], carry + x[0], None)[0], None


def outputs(scan, params, carry, x):
    """The outputs of the inner scan are its carries, and outputs of the outer one; another step reads the last."""
    step = lambda p, c, x: (jnp.sin(c @ p + x),) * 2  # noqa: E731
    last, ys = scan(step, params["kernel"], carry, x * carry)
    return jnp.tanh(last) + last, (ys, ys.sum(0))


def reverse(scan, params, carry, x):
    step = lambda p, c, x: (c * jnp.cos(x) + (c @ p).sum(), c * x)  # noqa: E731
    last, ys = scan(step, params["kernel"], carry, x, reverse=True)
    return last / 4 + ys.mean(0), ys


def cell(scan, params, carry, x):
    """A cell with names, over inputs that depend on the carry of the outer scan."""
    (last,), ys = scan(CELL, params["cell"], (carry,), x + carry)
    return last, ys


def in_segments(scan, params, carry, x):
    memory = {} if scan is by_lax else {"memory": rs.Memory(segment=2)}
    (last,), ys = scan(CELL, params["cell"], (carry,), x, **memory)
    return last, ys


def two(scan, params, carry, x):
    """Two scans, one in the loop of the other's carry, and a counter."""
    first, second, count = carry
    first, _ = cell(scan, params, first, x)
    second, ys = outputs(scan, params, second * first, x)
    return (first, second, count + 1), ys


def mapped(scan, params, carry, x):
    row = lambda c, x: outputs(scan, params, c, x)  # noqa: E731
    return jax.vmap(row, (0, 1), (0, (1, 0)))(carry, x)


def by_lax(step, params, carry, xs, *, length=None, reverse=False):
    return lax.scan(partial(step, params), carry, xs, length=length, reverse=reverse)


NESTED = {step.__name__: step for step in (carries, outputs, reverse, cell, in_segments, two, mapped)}
MEMORIES = {
    "default": rs.Memory(),
    "all": rs.Memory(recompute="all"),
    "segments": rs.Memory(segment=2),
    "chunks": rs.Memory(chunk=2),
}


def arguments_of(name):
    random = np.random.default_rng(1)
    draw = lambda *shape: normal(random, shape, float)  # noqa: E731
    of_cell = jax.tree.map(lambda leaf: draw(*leaf.shape) / 3, CELL.init(jax.random.key(0), WIDTH))
    params = {"kernel": draw(WIDTH, WIDTH) / 3, "cell": of_cell}
    carry = draw(ROWS, WIDTH)
    return params, (carry, carry + 1, jnp.zeros((), int)) if name == "two" else carry, draw(5, STEPS, ROWS, WIDTH)


def loss_of(name, scan, **options):
    step = partial(NESTED[name], scan)

    def loss(params, carry, xs):
        results = scan(step, params, carry, xs, **options)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results) if leaf.dtype == float)

    return loss


def assert_equal(actual, expected):
    """Leaves in float64 that are equal, relative to the largest element of each."""
    for leaf, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-12 * max(1, np.abs(wanted).max()))


TELLING = [*(f"{name}, default" for name in NESTED), "outputs, segments", "cell, chunks", "outputs, all"]


@pytest.mark.core("transformations within a step")
@pytest.mark.parametrize(
    ("name", "memory"),
    variants({f"{name}, {one}": (name, MEMORIES[one]) for name in NESTED for one in MEMORIES}, TELLING),
)
def test_values_and_gradients_are_those_of_plain_scans(name, memory):
    with jax.enable_x64(True):
        arguments = arguments_of(name)
        differentiate = lambda loss: jax.jit(jax.value_and_grad(loss, (0, 2)))(*arguments)  # noqa: E731
        assert_equal(differentiate(loss_of(name, rs.scan, memory=memory)), differentiate(loss_of(name, by_lax)))


@pytest.mark.parametrize("name", variants({name: name for name in NESTED}, ["outputs", "two"]))
@pytest.mark.parametrize("order", variants({"jvp": "jvp", "reverse": "reverse", "rows": "rows"}, ["jvp", "rows"]))
def test_second_derivatives_and_rows_are_those_of_plain_scans(name, order):
    def derivative(loss, params, carry, xs):
        gradient = jax.grad(loss)
        if order == "jvp":
            return jax.jvp(lambda params: gradient(params, carry, xs), (params,), (params,))[1]
        if order == "reverse":
            squares = lambda params: sum(map(jnp.vdot, *[jax.tree.leaves(gradient(params, carry, xs))] * 2))  # noqa: E731
            return jax.grad(squares)(params)
        return jax.vmap(gradient, (None, None, 0))(params, carry, jnp.stack([xs, xs + 1]))

    with jax.enable_x64(True):
        arguments = arguments_of(name)
        actual, expected = (jax.jit(partial(derivative, loss_of(name, scan)))(*arguments) for scan in (rs.scan, by_lax))
        assert_equal(actual, expected)


@pytest.mark.parametrize("name", ["carries", "outputs", "cell"])
def test_the_report_counts_the_residuals_of_inner_scans(name):
    arguments = arguments_of(name)
    step = partial(NESTED[name], rs.scan)
    training = memory_report(step, *arguments, compile=False).training
    assert training.kept_bytes == training.counted_bytes
    assert [row for row in training.rows if "inner scans" in row.name]
    least = memory_report(step, *arguments, memory=rs.Memory(recompute="all"), compile=False).training
    assert least.kept_bytes == least.counted_bytes < training.kept_bytes


RESET = jnp.zeros((STEPS, ROWS), bool).at[2, 1].set(True)
INNER = {
    "Newton": {"parallel": rs.Newton()},
    "lengths": {"seq_lengths": jnp.array([STEPS, 2])},
    "held lengths": {"seq_lengths": jnp.array([STEPS, 2]), "padding": "hold"},
    "reset": {"reset": RESET},
    "truncated": {"truncate": 2},
    "lax": {"engine": "lax"},
    "plain": {"memory": None},
}


@pytest.mark.parametrize("options", variants({name: (INNER[name],) for name in INNER}, ["held lengths"]))
def test_an_inner_scan_with_options_has_the_derivatives_of_a_plain_one(options):
    inner = cells.IndRNN(WIDTH, param_dtype=float) if "parallel" in options else CELL
    same_numbers = {name: value for name, value in options.items() if name not in ("parallel", "engine", "memory")}

    def loss(memory, options, params, carry, xs):
        def step(params, carry, x):
            (last,), ys = rs.scan(inner, params, (carry,), x + jnp.tanh(carry), **options)
            return jnp.sin(last), ys.sum(0) * last

        results = rs.scan(step, params, carry, xs, memory=memory)
        return sum(jnp.sum(jnp.cos(leaf)) for leaf in results)

    def derivatives(memory, options):
        gradient = jax.grad(partial(loss, memory, options))
        second = jax.jvp(lambda params: gradient(params, carry, xs), (params,), (params,))
        return second, jax.vmap(gradient, (None, None, 0))(params, carry, jnp.stack([xs, xs + 1]))

    with jax.enable_x64(True):
        random = np.random.default_rng(2)
        shapes = jax.eval_shape(lambda: inner.init(jax.random.key(0), WIDTH))
        params = jax.tree.map(lambda leaf: normal(random, leaf.shape, float) / 3, shapes)
        _, carry, xs = arguments_of("carries")
        ours = jax.jit(partial(derivatives, rs.Memory(), options))()
        assert_equal(ours, jax.jit(partial(derivatives, None, same_numbers | {"memory": None}))())
