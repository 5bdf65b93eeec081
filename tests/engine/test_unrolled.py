"""Loops that run several steps a unroll."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from drawn import normal
from jaxprs import equations_of, running
from rnnscan.engine.costs.heuristics import BACKENDS, using
from rnnscan.engine.loops.batched_values import NeighborPart, StackPart
from rnnscan.engine.loops.steps import run_steps
from rnnscan.engine.loops.time_loop import TimeLoop
from tiers import variants


STEPS, ROWS, WIDTH = 12, 2, 3


def step(state, given):
    (carry,), (total,) = state
    matrix, after = given
    carry = jnp.tanh(carry @ matrix) + after[0]
    return ([carry], [total + matrix]), [carry * 2, carry[0] ** 2]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("unroll", "hold"), [(1, 0), (12, 2), (4, 3), (6, 1), (5, 0)])
def test_results_are_those_of_a_scan(unroll, hold, reverse):
    random = np.random.default_rng(0)
    draw = partial(normal, random, dtype=jnp.float64)
    state = [draw((ROWS, WIDTH))], [draw((WIDTH, WIDTH))]
    matrices, last = draw((STEPS, WIDTH, WIDTH)), draw((WIDTH, WIDTH))
    sources = [partial(StackPart, matrices), partial(NeighborPart, matrices, to_end=not reverse, outside=last)]
    types = [jax.typeof(jnp.zeros(shape)) for shape in ((ROWS, WIDTH), (WIDTH,))]
    # A loop that JAX traces, so that steps have numbers.
    run = jax.jit(lambda state: run_steps(step, state, sources, types, TimeLoop(STEPS, unroll, reverse), hold=hold)[:2])
    after = jnp.concatenate([last[None], matrices[:-1]] if reverse else [matrices[1:], last[None]])
    expected = lax.scan(step, state, (matrices, after), reverse=reverse)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), run(state), expected)


CELLS = {"gru": rs.cells.GRU(4), "lstm": rs.cells.LSTM(4), "elementwise": rs.cells.ParaGRU(4)}


def _gradient(cell, params, xs, **options):
    loss = lambda *given: jnp.sum(rs.scan(cell, given[0], cell.initial_carry(xs[0]), given[1], **options)[1] ** 2)  # noqa: E731
    return jax.value_and_grad(loss, (0, 1))(params, xs)


def _arguments(cell):
    random = np.random.default_rng(1)
    params = cell.init(jax.random.key(0), 3)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * random.normal(size=leaf.shape), jnp.float64), params)
    return params, normal(random, (19, ROWS, 3), jnp.float64)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", variants({"kept": rs.Memory(), "all": rs.Memory(recompute="all")}, ["all"]))
@pytest.mark.parametrize("name", variants(list(CELLS), ["gru"]))
def test_gradients_on_a_gpu_are_those_of_plain_autodiff(name, memory):
    cell = CELLS[name]
    params, xs = _arguments(cell)
    with using(BACKENDS["gpu"]):
        found = jax.jit(partial(_gradient, cell, memory=memory, reverse=True))(params, xs)
    expected = jax.jit(partial(_gradient, cell, memory=None, reverse=True))(params, xs)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), found, expected)


@pytest.mark.parametrize(("name", "held"), [("gru", True), ("elementwise", False)])
def test_a_carry_is_held_where_a_loop_has_products(name, held):
    """Elsewhere a unroll is one kernel, which barriers would cut."""
    cell = CELLS[name]
    params, xs = cell.init(jax.random.key(0), 3), jnp.ones((16, ROWS, 3))
    with using(BACKENDS["gpu"]):
        program = running(partial(_gradient, cell))(params, xs)
    barriers = [one for one in equations_of(program.jaxpr) if one.primitive.name == "optimization_barrier"]
    of_a_carry = [one for one in barriers if [leaf.aval.shape for leaf in one.invars] == [(ROWS, 4)]]
    # Nothing reads the last carry of the forward pass.
    assert len(of_a_carry) == (2 * 16 // BACKENDS["gpu"].barrier_every - 1 if held else 0)


def test_a_loop_with_a_loop_within_it_is_not_unrolled():
    cell = rs.cells.LSTM(8)
    params = cell.init(jax.random.key(0), input_size=4)

    def lines(steps):
        def run(params, xs):
            return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=rs.Memory(segment=16))

        with rs.tuned_for("gpu"):
            return len(jax.jit(run).lower(params, jnp.ones((steps, 2, 4))).as_text().splitlines())

    assert lines(32) == lines(128)
