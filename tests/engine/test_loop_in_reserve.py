"""The loop in reserve of a parallel form runs only where that is not finite: XLA leaves it where it is."""

import re

import jax
import jax.numpy as jnp
import pytest

import remat3
import rnnscan as rs
from jaxprs import equations_of, running
from rnnscan import cells
from rnnscan.engine.loops.exact import RESERVE


ROWS, INPUTS = 2, 8
CELLS = {
    "matrix state": (cells.RetNet(64, heads=2, key_size=32), 128, "cpu", {}),
    "linear recurrence": (cells.MinGRU(8), 1024, "gpu", {}),
    "Newton's method": (cells.ParaGRU(8), 128, "cpu", {"parallel": rs.Newton()}),
    "short chunks": (cells.LSTM(8), 128, "gpu", {"memory": rs.Memory(recompute="all")}),
}
TRANSFORMS = {
    "gradients": lambda loss: jax.grad(loss, (0, 1)),
    "tangents": lambda loss: lambda *arguments: jax.jvp(loss, arguments, arguments),
    "gradients of rows": lambda loss: (
        lambda params, xs: jax.vmap(jax.grad(loss, (0, 1)), (None, 1))(params, xs[:, :, None])
    ),
}


def compiled_text(name, transform):
    cell, steps, platform, options = CELLS[name]
    params = cell.init(jax.random.key(0), INPUTS)
    xs = jax.random.normal(jax.random.key(1), (steps, ROWS, INPUTS))

    def loss(params, xs):
        return jnp.square(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)[1]).sum()

    with rs.tuned_for(platform):
        return jax.jit(TRANSFORMS[transform](loss)).lower(params, xs).compile().as_text()


def loops_in_reserve(computations):
    return re.findall(rf" while\(.*op_name=\"[^\"]*{RESERVE}\b", computations)


@pytest.mark.core("values that are not finite")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", [name for name in CELLS if name != "short chunks"])
def test_xla_moves_no_loop_in_reserve_to_where_it_always_runs(name, transform):
    # XLA moved it out of the loop of at most one iteration around it, because it depended on nothing in there.
    others, entry = compiled_text(name, transform).split("\nENTRY ")
    assert loops_in_reserve(others)
    assert not loops_in_reserve(entry)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_short_chunk_runs_its_steps_and_needs_no_reserve(transform):
    # On a GPU the state of an LSTM is brought back in chunks of 16 steps. A reserve makes the device wait for the host.
    assert not loops_in_reserve(compiled_text("short chunks", transform))


@pytest.mark.skipif(remat3.IS_ON, reason="nothing runs again within a window there (loops/calls.py)")
@pytest.mark.parametrize("decay", [0.9, None], ids=["a decay", "no decay"])
def test_the_derivative_of_the_reserve_stacks_each_state_of_a_piece_once(decay):
    """The derivative of a decay reads the state before a step, and that of a read the one after it."""

    def step(params, state, x):
        state = state if decay is None else params * state
        state = state + x[:, :, None] * x[:, None, :]
        return state, jnp.einsum("nk,nkv->nv", x, state)

    def loss(params, xs):
        return jnp.square(rs.scan(step, params, jnp.zeros((ROWS, 32, 32)), xs)[1]).sum()

    program = running(jax.grad(loss, (0, 1)))(jnp.float32(decay or 1), jnp.ones((64, ROWS, 32)))
    scans = [equation for equation in equations_of(program.jaxpr) if equation.primitive.name == "scan"]
    stacks = [sum(var.aval.shape[1:] == (ROWS, 32, 32) for var in scan.outvars) for scan in scans]
    assert max(stacks) == 1
