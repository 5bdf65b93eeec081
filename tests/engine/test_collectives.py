"""Collectives in a step are no side effects: they split, batch over time and recompute, and equal plain `lax.scan`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import rnnscan as rs
from drawn import normal
from rnnscan.engine.costs import heuristics
from slow_reference import assert_close
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")

T, N, H = 7, 4, 6


def normalized(params, hidden, x):
    """Normalized over all rows of all devices, as by batch normalization."""
    inner = hidden @ params["recurrent_kernel"] + x @ params["kernel"]
    mean = lax.pmean(inner.mean(0), "i")
    variance = lax.pmean(((inner - mean) ** 2).mean(0), "i")
    hidden = jnp.tanh((inner - mean) / jnp.sqrt(variance + 1e-3))
    return hidden, hidden


def ahead(params, hidden, x):
    """Collectives of the inputs, which are known ahead, and of the outputs, which nothing in the loop reads."""
    inner = lax.psum(x @ params["kernel"], "i")
    most = lax.pmax(lax.stop_gradient(jnp.abs(inner).max()), "i")
    hidden = jnp.tanh(hidden @ params["recurrent_kernel"] + inner / most)
    return hidden, hidden * (1 + lax.axis_index("i")) + lax.all_gather(hidden, "i").sum(0)


def moved(params, hidden, x):
    inner = lax.ppermute(x @ params["kernel"], "i", [(0, 1), (1, 0)])
    parts = lax.psum_scatter(inner, "i", scatter_dimension=0, tiled=True)
    hidden = jnp.tanh(hidden @ params["recurrent_kernel"] + jnp.concatenate([parts, parts]))
    return hidden, lax.all_to_all(hidden, "i", 0, 0, tiled=True)


def branching(params, hidden, x):
    """A collective in a branch that all devices take together."""
    inner = x @ params["kernel"]
    branches = (lambda inner: lax.pmean(inner, "i"), lambda inner: 0.3 * lax.psum(inner, "i"))
    hidden = jnp.tanh(hidden @ params["recurrent_kernel"] + lax.cond(lax.psum(x.sum(), "i") > 0, *branches, inner))
    return hidden, hidden


def linear(params, hidden, x):
    hidden = 0.5 * lax.pmean(hidden, "i") + x @ params["kernel"]
    return hidden, 0.9 * hidden


CELLS = {cell.__name__: cell for cell in (normalized, ahead, moved, branching, linear)}
OPTIONS = {
    "plain": {"memory": None},
    "default": {},
    "split": {"engine": "fission"},
    "recompute all": {"memory": rs.Memory(recompute="all")},
    "segments": {"memory": rs.Memory(segment=3)},
    "nested": {"memory": rs.Memory(segment=(4, 2))},
    "lax": {"engine": "lax", "memory": rs.Memory(segment=3)},
}
CASES = {f"{cell}-{option}": (CELLS[cell], OPTIONS[option]) for cell in CELLS for option in OPTIONS}
QUICK = ["normalized-segments", "ahead-split", "moved-recompute all", "branching-default", "linear-split"]


def arguments():
    random = np.random.default_rng(0)
    draw = lambda *shape: normal(random, shape, jnp.float64)  # noqa: E731
    params = {"recurrent_kernel": draw(H, H) / 3, "kernel": draw(3, H)}
    return params, draw(2, N, H), draw(2, T, N, 3)


def plain(cell, params, carry, xs):
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)


def total(scan, cell, params, carry, xs):
    carry, ys = scan(cell, params, carry, xs)
    return jnp.sum(carry**2) + jnp.sum(jnp.sin(ys))


def over_rows(loss):
    """The loss of both examples, under a `vmap` with a name."""
    return lambda params, carry, xs: jnp.sum(jax.vmap(partial(loss, params), axis_name="i")(carry, xs))


def gradients_over_rows(loss):
    """Values and gradients of each example within the `vmap`."""
    run = lambda params, carry, xs: jax.value_and_grad(loss, (0, 1))(params, carry, xs)  # noqa: E731
    return lambda params, carry, xs: jax.vmap(partial(run, params), axis_name="i")(carry, xs)


def over_devices(loss, *, check_vma):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
    one = lambda params, carry, xs: loss(params, carry[0], xs[0])[None]  # noqa: E731
    specs = {"in_specs": (P(), P("i"), P("i")), "out_specs": P("i")}
    run = jax.shard_map(one, mesh=mesh, check_vma=check_vma, **specs)
    return lambda params, carry, xs: jnp.sum(run(params, carry, xs))


def differentiated(loss):
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*arguments())


@pytest.mark.parametrize(("cell", "options"), variants(CASES, QUICK))
def test_over_an_axis_of_vmap(cell, options):
    assert_close(
        differentiated(over_rows(partial(total, partial(rs.scan, **options), cell))),
        differentiated(over_rows(partial(total, plain, cell))),
    )


@pytest.mark.core("collectives")
@pytest.mark.parametrize(("cell", "options"), variants(CASES, ["ahead-recompute all"]))
def test_gradients_within_an_axis_of_vmap(cell, options):
    assert_close(
        jax.jit(gradients_over_rows(partial(total, partial(rs.scan, **options), cell)))(*arguments()),
        jax.jit(gradients_over_rows(partial(total, plain, cell)))(*arguments()),
    )


@pytest.mark.parametrize(
    "check_vma", [pytest.param(True, id="varying types"), pytest.param(False, marks=pytest.mark.slow, id="no types")]
)
@pytest.mark.parametrize(("cell", "options"), variants(CASES, ["normalized-segments", "ahead-recompute all"]))
def test_over_devices(cell, options, check_vma):
    devices = partial(over_devices, check_vma=check_vma)
    assert_close(
        differentiated(devices(partial(total, partial(rs.scan, **options), cell))),
        differentiated(devices(partial(total, plain, cell))),
    )


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("cell", variants({name: (cell,) for name, cell in CELLS.items()}, ["ahead"]))
def test_with_the_choices_of_other_platforms(cell, platform):
    with heuristics.using(heuristics.BACKENDS[platform]):
        actual = differentiated(over_rows(partial(total, partial(rs.scan, memory=rs.Memory(recompute="all")), cell)))
    assert_close(actual, differentiated(over_rows(partial(total, plain, cell))))


def test_the_fission_engine_runs_a_step_with_collectives():
    params, carry, xs = arguments()
    seen = []

    def explained(carry, xs):
        seen.append(rs.explain(linear, params, carry, xs))
        return rs.scan(linear, params, carry, xs)[1]

    jax.vmap(explained, axis_name="i")(carry, xs)
    assert seen[0].engine == "fission"


def test_the_gradient_of_while_net():
    def more(_, carry):
        return jnp.tanh(lax.pmean(carry, "i")) + 0.1

    def run(start):
        return rs.while_net(lambda _, carry: carry.sum() < 100, more, start, max_steps=5, on_limit="stop")[0].sum()

    def by_scan(start):
        return lax.scan(lambda carry, _: (more(None, carry), None), start, length=5)[0].sum()

    starts = jnp.linspace(0.1, 0.6, 6).reshape(2, 3)
    first, second = (
        jax.grad(lambda starts, run=run: jnp.sum(jax.vmap(run, axis_name="i")(starts)))(starts)
        for run in (run, by_scan)
    )
    assert_close(first, second)


@pytest.mark.parametrize("options", [{}, {"memory": None}, {"engine": "lax"}], ids=str)
def test_no_steps_within_shard_map(options):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))

    def add(params, carry, x):
        return carry + params * x, carry

    run = jax.shard_map(
        lambda carry, xs: rs.scan(add, 2.0, carry, xs, **options),
        mesh=mesh,
        in_specs=(P("i"), P(None, "i")),
        out_specs=(P("i"), P(None, "i")),
    )
    carry = jnp.arange(2.0)
    final, ys = run(carry, jnp.zeros((0, 2)))
    assert_close(final, carry)
    assert ys.shape == (0, 2)
