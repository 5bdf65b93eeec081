"""scan_until: each row stops by itself, and the rest is `scan` with the lengths that were found."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
from rnnscan import cells
from slow_reference import assert_close
from tiers import variants


# `make test` runs these with the run-time type checks.
pytestmark = [pytest.mark.newest("loops that stop"), pytest.mark.typed]


MEMORIES = {
    "named": rs.Memory(),
    "none": rs.Memory(recompute="all", chunk=4),
    "segments": rs.Memory(segment=4),
    "nested": rs.Memory(segment=(6, 2)),
}
STEPS, ROWS = 9, 4
CELL = cells.LSTM(4)


def arguments():
    random = np.random.default_rng(0)
    xs = jnp.asarray(random.normal(size=(STEPS, ROWS, 3)))
    like = jax.eval_shape(lambda: (CELL.init(jax.random.key(0), 3), CELL.initial_carry(xs[0])))
    params, carry = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), like)
    return params, carry, xs


def stop(params, carry, y):
    return y[:, 0] > 0.3


def lengths(params, carry, xs):
    """The number of steps of each row, by a loop that runs the row alone."""
    found = []
    for row in range(ROWS):
        state, count = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], carry), 0
        while count < STEPS:
            state, y = CELL(params, state, xs[count, row : row + 1])
            count += 1
            if y[0, 0] > 0.3:
                break
        found.append(count)
    return found


@pytest.mark.parametrize("memory", variants(MEMORIES, ["segments"]))
def test_it_is_a_scan_with_the_lengths_at_which_the_rows_stop(x64, memory):
    given = arguments()
    counts = lengths(*given)
    assert len(set(counts)) > 2
    assert counts[0] < max(counts)

    def until(params, carry, xs):
        carry, ys, count = rs.scan_until(CELL, params, carry, xs, stop, STEPS, memory=memory)
        assert count.dtype == jnp.int32
        return (carry, ys), count

    def scan(params, carry, xs):
        return rs.scan(CELL, params, carry, xs, seq_lengths=jnp.array(counts), engine="lax", memory=None), None

    weights = [np.random.default_rng(1).normal(size=(STEPS, ROWS, 4)), np.random.default_rng(2).normal(size=(ROWS, 4))]

    def loss(run):
        def of(*given):
            (carry, ys), count = run(*given)
            return (ys * weights[0]).sum() + (carry[1] * weights[1]).sum(), ((carry, ys), count)

        return jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2), has_aux=True))(*given)

    ((_, (found, count)), gradients), ((_, (wanted, _)), expected) = loss(until), loss(scan)
    assert count.tolist() == counts
    assert_close((found, gradients), (wanted, expected))


def test_rows_of_a_batch_are_the_rows_alone(x64):
    params, carry, xs = arguments()
    _, ys, count = rs.scan_until(CELL, params, carry, xs, stop, STEPS)
    for row in range(ROWS):
        one = slice(row, row + 1)
        alone = jax.tree.map(lambda leaf, one=one: leaf[one], carry)
        _, own_ys, own_count = rs.scan_until(CELL, params, alone, xs[:, one], stop, STEPS)
        assert_close((own_ys, own_count), (ys[:, one], count[one]))


def test_without_inputs_and_with_one_boolean_for_all():
    def double(params, carry, x):
        assert x is None
        return 2 * carry, {"before": carry, "none": None}

    carry, ys, count = rs.scan_until(double, None, jnp.ones(2), None, lambda params, carry, y: carry.sum() > 8, 6)
    assert (count, count.shape) == (3, ())
    assert carry.tolist() == [8, 8]
    assert ys["before"][:, 0].tolist() == [1, 2, 4, 0, 0, 0]


def test_a_row_that_stops_at_the_limit_or_never_has_all_steps():
    def run(threshold):
        add = lambda params, carry, x: (carry + x, carry + x)  # noqa: E731
        return rs.scan_until(add, None, jnp.zeros(2), jnp.ones((4, 2)), lambda p, carry, y: carry >= threshold, 4)

    assert run(4)[2].tolist() == [4, 4]
    assert run(jnp.array([2, 9]))[2].tolist() == [2, 4]
    assert run(jnp.array([2, 9]))[1].tolist() == [[1, 1], [2, 2], [0, 3], [0, 4]]


def test_what_rows_that_stopped_would_read_reaches_nothing(x64):
    params, carry, xs = arguments()
    counts = jnp.array(lengths(params, carry, xs))
    spoiled = jnp.where(jnp.arange(STEPS)[:, None, None] < counts[:, None], xs, jnp.nan)

    def total(xs):
        carry_, ys, _ = rs.scan_until(CELL, params, carry, xs, stop, STEPS)
        return ys.sum() + carry_[1].sum()

    found, wanted = (jax.grad(total)(given) for given in (spoiled, xs))
    assert_close(found, wanted)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"stop": lambda p, c, y: y}, TypeError, r"`stop` must return booleans \(N,\), one for each row"),
        ({"stop": lambda p, c, y: (y > 0)[:, None]}, TypeError, r"got bool\[2,1\]"),
        ({"stop": lambda p, c, y: (True, False)}, TypeError, "got the pytree"),
        ({"stop": None}, TypeError, "`stop` must be callable"),
        ({"xs": jnp.ones((5, 2))}, ValueError, "scan_until: "),
        ({"cell": lambda p, c, x: c}, TypeError, "scan_until: a cell must return the pair"),
        ({"max_steps": -1}, ValueError, "`max_steps` must be an integer"),
        ({"stop": lambda p, c, y: jnp.ones(3, bool)}, ValueError, "rows"),
        ({"xs": jnp.ones((4, 3)), "cell": lambda p, c, x: (c, c)}, ValueError, "so axis 1 of `xs` must have size 2"),
        ({"xs": jnp.ones((0, 2))}, ValueError, "scan_until: "),
        (
            {"cell": lambda p, c, x: (c.astype(int), c)},
            TypeError,
            r"`carry` went in as float32\[2\] and came out as int",
        ),
        (
            {"cell": lambda p, c, x: (c[:1], c)},
            TypeError,
            r"`carry` went in as float32\[2\] and came out as float32\[1\]",
        ),
        (
            {"cell": lambda p, c, x: ([c], c), "stop": lambda p, c, y: y > 2},
            TypeError,
            "scan_until: a cell must return a carry of the structure",
        ),
    ],
)
def test_wrong_arguments(change, error, match):
    given = {"cell": lambda p, c, x: (c + x, c), "params": None, "carry": jnp.zeros(2), "xs": jnp.ones((4, 2))}
    given |= {"stop": lambda p, c, y: c > 2, "max_steps": 4, **change}
    with pytest.raises(error, match=match):
        rs.scan_until(**given)


@pytest.mark.parametrize(
    ("cell", "stop", "told"),
    [
        (
            lambda _, carry, x: (carry.missing, x),
            lambda _, carry, y: True,
            "the cell was called as cell(params, carry, x), with carry = float32[2,3] and x = float32[2]. A cell ",
        ),
        (
            lambda _, carry, x: (carry, x),
            lambda _, carry, y: y.missing,
            "`stop` was called as stop(params, carry, y), with carry = float32[2,3] and y = float32[2]. It returns",
        ),
    ],
    ids=["cell", "stop"],
)
def test_an_error_in_a_function_says_how_it_was_called(cell, stop, told):
    with pytest.raises(AttributeError, match="missing") as caught:
        rs.scan_until(cell, None, jnp.ones((2, 3)), jnp.ones((5, 2)), stop, max_steps=5)
    assert [note for note in caught.value.__notes__ if note.startswith(f"scan_until: {told}")]
    assert len([note for note in caught.value.__notes__ if "was called as" in note]) == 1


def test_under_shard_map_each_device_stops_by_its_rows(x64):
    params, carry, xs = arguments()

    def total(params, carry, xs):
        last, ys, count = rs.scan_until(CELL, params, carry, xs, stop, STEPS, memory=rs.Memory(segment=3))
        return ys.sum() + (last[1] ** 2).sum(), count

    def local(params, carry, xs):
        loss, count = total(params, carry, xs)
        return jax.lax.psum(loss, "rows"), count

    rows, mesh = PartitionSpec("rows"), jax.make_mesh((2,), ("rows",), (AxisType.Auto,), devices=jax.devices()[:2])
    specs = (PartitionSpec(), rows, PartitionSpec(None, "rows"))
    spread = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(PartitionSpec(), rows))
    found, wanted = (
        jax.jit(jax.grad(run, argnums=(0, 1, 2), has_aux=True))(params, carry, xs) for run in (spread, total)
    )
    assert_close(jax.device_get(found), jax.device_get(wanted))


@pytest.mark.parametrize("memory", variants(MEMORIES, ["named", "segments"]))
def test_a_row_that_stops_where_the_step_has_no_finite_derivative(x64, memory):
    """The root of 0, at which the first row stops, has an infinite derivative."""
    starts, counts = jnp.array([1.0, 3.0]), (1, 3)

    def root(scale, carry, x):
        return carry - 1.0, scale * jnp.sqrt(carry)

    def total(scale, starts):
        stop = lambda p, carry, y: carry <= 0  # noqa: E731
        return rs.scan_until(root, scale, starts, None, stop, 5, memory=memory)[1].sum()

    def alone(scale, starts):
        places = [(row, step) for row, count in enumerate(counts) for step in range(count)]
        return sum(scale * jnp.sqrt(starts[row] - step) for row, step in places)

    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        assert_close(*(derivative(run, (0, 1))(2.0, starts) for run in (total, alone)))


@pytest.mark.parametrize("memory", variants(MEMORIES, ["named", "segments"]))
def test_inputs_of_which_zeros_have_no_finite_derivative(x64, memory):
    """The logarithm of an input. A row that stopped reads none of its own later inputs, and no zeros."""
    xs, counts = jnp.array([[2.0, 3.0], [0.0, 5.0], [-1.0, 7.0]]), (1, 3)

    def count_down(scale, carry, x):
        return carry - 1.0, scale * jnp.log(x)

    def total(scale, xs):
        stop = lambda p, carry, y: carry <= 0  # noqa: E731
        return rs.scan_until(count_down, scale, jnp.array([1.0, 3.0]), xs, stop, 3, memory=memory)[1].sum()

    def alone(scale, xs):
        places = [(row, step) for row, count in enumerate(counts) for step in range(count)]
        return sum(scale * jnp.log(xs[step, row]) for row, step in places)

    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        assert_close(*(derivative(run, (0, 1))(2.0, xs) for run in (total, alone)))


@pytest.mark.parametrize("mask", ["sharded", "whole"])
def test_rows_over_an_explicit_axis(x64, mask):
    mesh = jax.make_mesh((2,), ("rows",), (AxisType.Explicit,), devices=jax.devices()[:2])
    specs = PartitionSpec(), PartitionSpec("rows"), PartitionSpec(None, "rows")
    random = np.random.default_rng(0)
    given = tuple(jnp.asarray(random.normal(size=size)) for size in ((3, 3), (4, 3), (5, 4, 3)))

    def cell(kernel, carry, x):
        carry = jnp.tanh(carry @ kernel + x)
        return carry, carry

    def total(reshard, *arguments):
        last, ys, count = rs.scan_until(cell, *arguments, lambda p, c, y: reshard(y).sum(-1) > 1, 5)
        return jnp.sin(last).sum() + (ys**2).sum(), count

    def gradient(reshard, *arguments):
        return jax.jit(jax.value_and_grad(partial(total, reshard), (0, 1, 2), has_aux=True))(*arguments)

    expected = gradient(lambda y: y, *given)
    assert len({*expected[0][1].tolist()}) > 1
    with jax.set_mesh(mesh):
        on_mesh = (jax.device_put(leaf, NamedSharding(mesh, spec)) for leaf, spec in zip(given, specs, strict=True))
        whole = (lambda y: jax.sharding.reshard(y, PartitionSpec())) if mask == "whole" else (lambda y: y)
        found = gradient(whole, *on_mesh)
    assert_close(jax.device_get(found), jax.device_get(expected))


@pytest.mark.parametrize("derivative", ["values", "gradients"])
def test_exported_for_any_number_of_rows(derivative):
    def run(scale, carry, xs):
        step = lambda scale, carry, x: ((new := jnp.tanh(scale * carry + x)), new)  # noqa: E731
        return rs.scan_until(step, scale, carry, xs, lambda p, carry, y: carry.sum(-1) > 1, 5)

    function = run if derivative == "values" else jax.grad(lambda *given: run(*given)[1].sum(), (0, 1, 2))
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4, 3)), jnp.float32)
    given = jnp.float32(0.5), jnp.zeros((4, 3)), xs
    (rows,) = jax.export.symbolic_shape("rows")
    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((), (rows, 3), (5, rows, 3)))
    exported = jax.export.export(jax.jit(function))(*shapes)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), exported.call(*given), function(*given)
    )
