"""Loops carry a leaf with a long axis last. Values, derivatives and reports are those of the step as it is written."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rnnscan as rs
from drawn import normal
from rnnscan import cells
from slow_reference import assert_close
from tiers import variants


T, N, D, S = 6, 2, 33, 10


def draw(*shape, seed, dtype=jnp.float64):
    return normal(np.random.default_rng(seed), shape, dtype)


def selective(params, state, x):
    """S6, the recurrence of Mamba: a decay for each feature and state."""
    step = jax.nn.softplus(x @ params["step"])
    decay = jnp.exp(step[..., None] * -jnp.exp(params["decay"]))
    state = decay * state + (step * x)[..., None] * (x @ params["write"])[:, None]
    return state, jnp.einsum("nds,ns->nd", state, x @ params["read"])


def momentum(params, carry, x):
    """Two leaves that read each other, a fixed leaf, and reductions over one axis and over two."""
    place, speed = carry
    force = -jnp.tanh(params["decay"] * place) + x[..., None]
    speed = 0.9 * speed + 0.1 * force / (1 + jnp.mean(speed, axis=2, keepdims=True) ** 2)
    place = jnp.where(x[..., None] > 1, 0.0, place + speed)
    return (place, speed), (place.sum((1, 2)), jnp.einsum("nds,ds->n", place, params["decay"]), speed.sum(1))


def named(params, state, x):
    decay = rs.name(jax.nn.sigmoid(params["decay"] + x[..., None]), "decay")
    state = rs.name(decay * state + x[..., None] * params["write"], "state before tanh")
    return jnp.tanh(state), state.mean(1)


def delta_rule(params, state, x):
    """A product of the state in its own cycle."""
    state = jax.nn.sigmoid(params["decay"]) * jnp.tanh(state)
    error = x - jnp.einsum("nds,s->nd", state, params["write"][0])
    state = state + error[..., None] * params["write"][0]
    return state, state.sum(2)


def largest(params, state, x):
    """A maximum, whose derivative compares it with its operands."""
    state = jnp.tanh(params["decay"] * state + x[..., None])
    return state / jnp.abs(state).max(2, keepdims=True), state.sum(2)


def another_function(params, state, x):
    state = jnp.tanh(state) * jnp.expm1(params["decay"] * x[..., None])
    return state, state.sum(2)


def without_functions(params, state, x):
    state = params["decay"] * state + x[..., None]
    return state, state.sum(2)


def shows_its_state(params, state, x):
    state = jnp.tanh(params["decay"] * state + x[..., None])
    return state, state


def reshapes(params, state, x):
    state = jnp.tanh(params["decay"] * state + x[..., None])
    return state, state.reshape(N, -1) @ jnp.ones((D * S, 2))


def reads_large_input(params, state, x):
    return jnp.tanh(0.5 * state + x[0]), state.sum(2)


def random_cell(seed):
    """A step of random operations on values of the state's rank, and random reads of them."""

    def cell(params, state, x):
        random = np.random.default_rng(seed)

        def one_of(options):
            return options[random.integers(len(options))]

        wide = [params["decay"], params["write"], x[..., None], x[:, :, None] * params["read"], 0.5]
        operations = (
            lambda value: value * one_of(wide),
            lambda value: jnp.exp(-(value**2)) + one_of(wide),
            lambda value: jnp.where(value > one_of(wide), value, one_of(values)),
            lambda value: value - value.mean(2, keepdims=True),
            lambda value: value / (1 + jnp.abs(value).sum((1, 2), keepdims=True)),
            lambda value: jnp.exp(jnp.clip(value, -1.0, 1.0)),
            lambda value: jnp.maximum(value, one_of(values)),
        )
        reads = (
            lambda value: value.sum(2),
            lambda value: jnp.einsum("nds,ds->n", value, params["write"]),
            lambda value: jnp.einsum("nds,ns->nd", value, x @ params["read"]),
            lambda value: jnp.einsum("nds,nd->ns", value, x),
            lambda value: jnp.einsum("nds,de->nse", value, params["step"]),
        )
        values = [jnp.tanh(state + x[..., None])]
        for _ in range(random.integers(3, 9)):
            values.append(one_of(operations)(one_of(values)))
        return jnp.tanh(values[-1]), [one_of(reads)(one_of(values)) for _ in range(2)]

    return cell


def arguments(cell, dtype=jnp.float64):
    shapes = {"step": (D, D), "decay": (D, S), "write": (D, S), "read": (D, S)}
    params = {name: draw(*shape, seed=seed, dtype=dtype) / 6 for seed, (name, shape) in enumerate(shapes.items())}
    leaves = [draw(N, D, S, seed=seed, dtype=dtype) for seed in (5, 6)]
    xs = draw(T, N, D, seed=7, dtype=dtype)
    if cell is reads_large_input:
        return params, leaves[0], (draw(T, N, D, S, seed=8, dtype=dtype), xs)
    return params, tuple(leaves) if cell is momentum else leaves[0], xs


def plain(cell, params, carry, xs, **options):
    return lax.scan(partial(cell, params), carry, xs, **options)


def gradients(run, *arguments):
    """The gradients of a loss that reads all results nonlinearly, and the results."""

    def loss(*arguments):
        results = run(*arguments)
        floats = [leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in floats), results

    return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*arguments)


def axes_of(cell, *arguments, **options):
    return [leaf.axes for leaf in rs.explain(cell, *arguments, **options).carry.values()]


REORDERED = {"selective": selective, "momentum": momentum, "named": named, "delta rule": delta_rule}
AS_WRITTEN = {
    "another function": another_function,
    "largest": largest,
    "without functions": without_functions,
    "shows its state": shows_its_state,
    "reshapes": reshapes,
    "reads large input": reads_large_input,
}
every_cell = pytest.mark.parametrize(
    "cell", [*REORDERED.values(), *AS_WRITTEN.values()], ids=lambda cell: cell.__name__
)
MEMORIES = {
    "default": rs.Memory(),
    "recompute all": rs.Memory(recompute="all"),
    "segments": rs.Memory(segment=4),
    "chunks": rs.Memory(chunk=3),
}
reordered = pytest.mark.parametrize("cell", REORDERED.values(), ids=REORDERED)


@reordered
def test_a_long_axis_is_last(cell):
    explanation = rs.explain(cell, *arguments(cell, jnp.float32))
    assert {leaf.axes for leaf in explanation.carry.values()} == {(0, 2, 1)}
    assert {leaf.type for leaf in explanation.carry.values()} == {f"float32[{N},{D},{S}]"}
    assert "its axes in the order (0, 2, 1)" in str(explanation)
    assert {part.direction for part in explanation.costs} == {"forward", "backward"}
    # Nothing with the size of the state is transposed in the loop.
    sizes = [one.result for one in explanation.equations if one.operation == "transpose" and one.forward != "once"]
    assert not [size for size in sizes if sorted(size[8:-1].split(",")) == sorted(map(str, (N, D, S)))]


@pytest.mark.parametrize("cell", AS_WRITTEN.values(), ids=AS_WRITTEN)
def test_a_step_that_would_have_to_move_its_state_runs_as_written(cell):
    assert axes_of(cell, *arguments(cell)) == [()]


def test_a_state_whose_last_axis_is_long_stays():
    def cell(params, state, x):
        return jnp.tanh(state) + x[..., None], state.sum(2)

    def order(*shape, **options):
        (axes,) = axes_of(cell, None, jnp.ones(shape), jnp.ones((T, *shape[:-1])), **options)
        return axes

    assert order(32, 40, 16) == order(2, 32, 9) == order(1, 32, 31) == (0, 2, 1)
    assert order(2, 40, 32) == order(2, 40, 8) == order(2, 31, 16) == ()
    assert order(40, 2, 16) == ()  # What is read would have to be transposed.
    assert order(32, 40, 16, engine="lax") == ()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("choice", variants(MEMORIES, ["default", "segments"]))
@every_cell
def test_values_and_gradients_are_those_of_a_plain_scan(cell, choice):
    given = arguments(cell)
    actual = jax.jit(partial(gradients, partial(rs.scan, cell, memory=choice)))(*given)
    assert_close(actual, jax.jit(partial(gradients, partial(plain, cell)))(*given), tolerance=1e-11)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seed", variants(range(60), [0, 1, 2]))
def test_random_steps(seed):
    cell, given = random_cell(seed), arguments(None)
    assert axes_of(cell, *given) == [(0, 2, 1)]
    actual = jax.jit(partial(gradients, partial(rs.scan, cell)))(*given)
    assert_close(actual, jax.jit(partial(gradients, partial(plain, cell)))(*given), tolerance=1e-10)


@pytest.mark.usefixtures("x64")
@reordered
def test_derivatives_of_all_kinds_and_rows_are_those_of_a_plain_scan(cell):
    given = arguments(cell)
    tangents = jax.tree.map(lambda leaf: jnp.cos(3 * leaf), given)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), given)

    def results(run):
        def directional(*arguments):
            of_arguments = jax.grad(lambda *arguments: gradients(run, *arguments)[1][0].sum().real, argnums=(0, 1, 2))
            return jax.jvp(of_arguments, arguments, tangents)[1]

        def first(*arguments):
            carry, ys = run(*arguments)
            return jax.tree.leaves(carry)[0], ys

        return (
            jax.jvp(run, given, tangents),
            jax.vmap(run)(*several),
            jax.vmap(partial(gradients, run))(*several),
            jax.jvp(lambda *arguments: gradients(first, *arguments)[0], given, tangents)[1],
        )

    assert_close(
        jax.jit(partial(results, partial(rs.scan, cell)))(),
        jax.jit(partial(results, partial(plain, cell)))(),
        tolerance=1e-10,
    )


@pytest.mark.usefixtures("x64")
def test_lengths_resets_windows_and_reverse():
    params, state, xs = arguments(selective)
    options = {
        "seq_lengths": jnp.arange(N) % (T + 1),
        "reset": draw(T, N, seed=9) > 1,
        "reverse": True,
        "reset_to": 0.5 * state,
    }
    run, lax_engine = (partial(rs.scan, selective, engine=engine, **options) for engine in ("auto", "lax"))
    assert_close(gradients(run, params, state, xs), gradients(lax_engine, params, state, xs), tolerance=1e-11)
    whole = rs.scan(selective, params, state, xs)
    carry, first = rs.scan(selective, params, state, xs[:4])
    carry, last = rs.scan(selective, params, carry, xs[4:])
    assert_close((carry, jnp.concatenate([first, last])), whole, tolerance=1e-12)


@pytest.mark.usefixtures("x64")
@reordered
def test_two_devices_and_exported_programs_give_the_same(cell):
    given = arguments(cell)
    run = jax.jit(partial(gradients, partial(rs.scan, cell)))
    expected = run(*given)
    assert_close(jax.export.export(run)(*given).call(*given), expected, tolerance=1e-12)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))
    by_row = lambda axis: lambda leaf: jax.device_put(leaf, NamedSharding(mesh, P(*[None] * axis, "rows")))  # noqa: E731
    params, carry, xs = given
    sharded = params, jax.tree.map(by_row(0), carry), jax.tree.map(by_row(1), xs)
    assert_close(run(*sharded), expected, tolerance=1e-11)
    scan = jax.shard_map(
        partial(rs.scan, cell),
        mesh=mesh,
        in_specs=(P(), P("rows"), P(None, "rows")),
        out_specs=(P("rows"), P(None, "rows")),
    )
    if cell in (selective, named, delta_rule):  # Each row by itself.
        assert_close(jax.jit(partial(gradients, scan))(*given), expected, tolerance=1e-11)


def test_the_report_counts_what_is_kept():
    for cell in REORDERED.values():
        report = rs.memory_report(cell, *arguments(cell, jnp.float32), compile=False).training
        assert report.kept_bytes == report.counted_bytes


def test_other_platforms_keep_the_order():
    with rs.tuned_for("gpu"):
        assert axes_of(selective, *arguments(selective)) == [()]


def test_cells_of_the_library_run_as_written():
    cell = cells.LSTM(8)
    params = cell.init(jax.random.key(0), input_size=3)
    xs = jnp.ones((T, 64, 3))
    assert axes_of(cell, params, cell.initial_carry(xs[0]), xs) == [(), ()]
