"""On a CPU loops read and write the stacks of all steps in place, and JAX differentiates others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from exports import with_any_batch
from jaxprs import equations_of, is_loop, running
from rnnscan.engine.run import cotangent_scan
from rnnscan.planning.bytes import temporary_bytes
from tiers import variants
from two_devices import MODES, on_two_devices


ROWS, FEATURES, HIDDEN = 4, 3, 5
CELLS = {
    # The c of an LSTM is kept before chunks only, the h is an output too.
    "LSTM": rs.cells.LSTM(HIDDEN),
    "GRU": rs.cells.GRU(HIDDEN),
    "two layers": rs.stack(rs.cells.LSTM(HIDDEN), rs.cells.LRU(HIDDEN)),
    "RNN": rs.cells.RNN(HIDDEN),
}


def arguments(cell, steps, rows=ROWS, dtype=float):
    random = np.random.default_rng(steps)
    shapes = jax.eval_shape(lambda: cell.init(jax.random.key(0), FEATURES))
    params = jax.tree.map(lambda leaf: normal(random, leaf.shape, dtype, 0.5), shapes)
    xs = normal(random, (steps, rows, FEATURES), dtype)
    zeros = cell.initial_carry(jnp.zeros((rows, FEATURES)))
    carry = jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype), zeros)
    return params, carry, xs


def training(cell, **options):
    """Loss and gradients of a scan."""

    def loss(*given):
        return sum(jnp.sum(jnp.sin(leaf).real) for leaf in jax.tree.leaves(rs.scan(cell, *given, **options)))

    return jax.value_and_grad(loss, argnums=(0, 1, 2))


def assert_equal(found, wanted):
    for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-11, atol=1e-11)


def loops(function, *given):
    """The types of what the outer loops of a program carry."""
    program = running(function)(*given)
    found = filter(is_loop, equations_of(program.jaxpr))
    return [[value.aval.shape for value in loop.outvars[: loop.params.get("num_carry")]] for loop in found]


@pytest.mark.core("the engine")
def test_the_stacks_are_in_the_state_of_the_loops():
    given = arguments(CELLS["LSTM"], 24)
    forward, backward, *_ = loops(training(CELLS["LSTM"], memory=rs.Memory(chunk=8)), *given)
    assert forward.count((24, ROWS, HIDDEN)) == 1  # The outputs.
    assert forward.count((24, ROWS, 4 * HIDDEN)) == 1  # The gates.
    assert forward.count((4, ROWS, HIDDEN)) == 1  # The c before each chunk, and after the last.
    assert backward.count((3, 8, ROWS, FEATURES)) == 1  # The cotangents of the inputs, by chunks.


def test_a_large_carry_is_not_written_at_each_step():
    # Its state is a matrix, and its output a vector.
    def running(params, carry, x):
        carry = jax.nn.sigmoid(params["rate"]) * carry + jnp.tanh(x[:, :, None] * x[:, None])
        return carry, carry.sum(-1)

    given = {"rate": jnp.ones(())}, jnp.zeros((2, 8, 8)), jnp.ones((24, 2, 8))
    carried = [shape for shapes in loops(training(running), *given) for shape in shapes]
    assert (2, 8, 8) in carried
    # Only before each of 6 chunks, and where a chunk of 4 steps computes them again.
    assert [shape for shape in carried if shape[1:] == (2, 8, 8)] == [(6, 2, 8, 8), (4, 2, 8, 8)]


def test_jax_differentiates_no_loop_that_runs(monkeypatch):
    """It differentiates scans. Their loops are made where a program is lowered."""
    cell = CELLS["LSTM"]
    given = arguments(cell, 24)
    runs, run = [], cotangent_scan.run_backward

    def noted(*given, **options):
        runs.append(options)
        return run(*given, **options)

    def slope(*given):
        gradients = training(cell, memory=rs.Memory(chunk=8))(*given)[1]
        return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradients))

    monkeypatch.setattr(cotangent_scan, "run_backward", noted)
    traced = jax.jit(jax.grad(slope)).trace(*given)
    assert not runs
    traced.lower()
    assert runs


# Chunks of 4 steps: without a remainder, with one of 1 and of 3 steps, one chunk, a shorter one alone.
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("steps", variants([24, 13, 7, 4, 3, 1, 0], [13, 4, 0]))
@pytest.mark.parametrize("reverse", variants([False, True], [True]))
@pytest.mark.parametrize("cell", variants(CELLS, ["LSTM", "two layers"]))
def test_gradients_are_those_of_plain_autodiff(cell, reverse, steps):
    given = arguments(cell, steps)
    found, plain = (
        jax.jit(training(cell, memory=memory, reverse=reverse))(*given) for memory in (rs.Memory(chunk=4), None)
    )
    assert_equal(found, plain)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cell", variants(CELLS, ["LSTM"]))
def test_rows_windows_and_second_derivatives_agree(cell):
    params, carry, xs = arguments(cell, 11)
    options = {"memory": rs.Memory(chunk=4)}

    def in_windows(params, carry, xs):
        carry, first = rs.scan(cell, params, carry, xs[:5], **options)
        carry, second = rs.scan(cell, params, carry, xs[5:], **options)
        return sum(jnp.sum(jnp.sin(leaf).real) for leaf in [*jax.tree.leaves(carry), first, second])

    def curvature(**options):
        def slope(params):
            gradients = training(cell, **options)(params, carry, xs)[1][0]
            return sum(jnp.sum(jnp.cos(leaf).real) for leaf in jax.tree.leaves(gradients))

        return jax.jit(jax.grad(slope))(params)

    wanted = jax.jit(training(cell, **options))(params, carry, xs)
    assert_equal(jax.jit(jax.value_and_grad(in_windows, argnums=(0, 1, 2)))(params, carry, xs), wanted)
    assert_equal(curvature(**options), curvature(memory=None))
    each = jax.vmap(training(cell, **options), in_axes=(None, 0, 1))
    alone = jax.tree.map(lambda leaf: leaf[:, None], carry), xs[:, :, None]
    of_rows = jax.tree.map(lambda leaf: leaf.sum(0), jax.jit(each)(params, *alone)[1][0])
    assert_equal(of_rows, wanted[1][0])


def test_under_vmap_each_takes_the_memory_of_one():
    # `lax.scan` moves the steps of batched stacks to the front, so that there were two copies of each: 1.3 of this.
    cell = rs.cells.LSTM(32)
    params, carry, xs = arguments(cell, 64, rows=8, dtype=jnp.float32)
    run = training(cell)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), (carry, xs))
    needs = [
        temporary_bytes(jax.jit(function).lower(params, *given).compile())
        for function, given in ((run, (carry, xs)), (jax.vmap(run, in_axes=(None, 0, 0)), several))
    ]
    assert needs[1] <= 1.1 * 4 * needs[0]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mode", MODES)
def test_two_devices_give_what_one_does(mode):
    cell = CELLS["LSTM"]
    params, (h, c), xs = arguments(cell, 11)
    given = params, jnp.stack([h, c], 1), xs

    def run(params, carry, xs):
        (h, c), ys = rs.scan(cell, params, (carry[:, 0], carry[:, 1]), xs, memory=rs.Memory(chunk=4))
        return jnp.stack([h, c], 1), ys

    def gradients(run):
        return jax.grad(lambda *given: sum(jnp.sum(jnp.sin(leaf)) for leaf in run(*given)), argnums=(0, 1, 2))

    wanted = jax.jit(gradients(run))(*given)
    with on_two_devices(mode, run, given) as (on_mesh, placed):
        assert_equal(jax.jit(gradients(on_mesh))(*placed), wanted)


@pytest.mark.usefixtures("x64")
def test_exported_gradients_are_the_live_ones():
    cell = CELLS["GRU"]
    params, carry, xs = arguments(cell, 11)
    run = jax.jit(training(cell, memory=rs.Memory(chunk=4)))
    exported = jax.export.export(run)(*with_any_batch(params, carry, xs))
    restored = jax.export.deserialize(exported.serialize())
    assert_equal(restored.call(params, carry, xs), run(params, carry, xs))
